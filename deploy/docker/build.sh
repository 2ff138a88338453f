#!/usr/bin/env bash
# Builds the image without a Docker daemon or a registry, then starts it as a check. Needs root.
#   deploy/docker/build.sh [--tag NAME] [--mirror URL] [--output FILE.tar] [--no-run]
# The base is a fresh debootstrap of Debian 12 from the mirror in this machine's apt sources.
set -euo pipefail
cd "$(dirname "$0")/../.."

tag=localhost/weft:latest mirror='' output='' run=true
while [ $# -gt 0 ]; do
  case $1 in
    --tag) tag=$2; shift 2 ;;
    --mirror) mirror=$2; shift 2 ;;
    --output) output=$2; shift 2 ;;
    --no-run) run=false; shift ;;
    *) sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
[ "$(id -u)" -eq 0 ] || { echo "build: run as root (debootstrap and buildah's chroot need it)" >&2; exit 1; }
./deploy/install.sh --images

if [ -z "$mirror" ]; then
  mirror=$({ cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null || true; } |
    sed -nE 's/^(deb |URIs: *)(\[[^]]*\] )?(https?:\/\/[^ ]*\/debian\/?)( .*|$)/\3/p' | sed -n 1p)
fi
work=$(mktemp -d)
base=$(mktemp -d)
trap 'rm -rf "$work" "$base"' EXIT
images=${WEFT_IMAGE_STORE:-/var/tmp/weft-images}
store=(--root "$images" --runroot "$images-run")

if ! buildah "${store[@]}" inspect --type image localhost/weft-base:bookworm >/dev/null 2>&1; then
  echo "build: base image by debootstrap from ${mirror:-the default mirror}"
  debootstrap --variant=minbase --include=ca-certificates bookworm "$base/rootfs" \
    ${mirror:+"$mirror"} >"$work/debootstrap.log" || { tail "$work/debootstrap.log" >&2; exit 1; }
  # The way to the mirror (a proxy, say) is the same from inside.
  cp -a /etc/apt/apt.conf.d "$base/rootfs/etc/apt/"
  tar -C "$base/rootfs" --numeric-owner -cf "$base/rootfs.tar" .
  rm -rf "$base/rootfs"
  printf 'FROM scratch\nADD rootfs.tar /\n' >"$base/Dockerfile"
  buildah "${store[@]}" bud --isolation chroot -q -t localhost/weft-base:bookworm "$base"
fi

echo "build: image $tag"
buildah "${store[@]}" bud --isolation chroot --pull-never --timestamp 0 --format docker \
  --build-arg BASE=localhost/weft-base:bookworm -t "$tag" -f deploy/docker/Dockerfile .
[ -z "$output" ] || buildah "${store[@]}" push "$tag" "docker-archive:$output:$tag"

if $run; then
  echo "build: starting the image as user 10001, no capabilities, read-only root"
  cat >"$work/containers.conf" <<CONF
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
CONF
  export CONTAINERS_CONF=$work/containers.conf
  podman() { command podman "${store[@]}" "$@"; }
  podman run --rm --read-only --cap-drop=all --security-opt=no-new-privileges --network=none \
    "$tag" weft version --client
  id=$(podman run -d --read-only --cap-drop=all --security-opt=no-new-privileges --network=none \
    --tmpfs /tmp "$tag")
  up=false
  for _ in $(seq 50); do
    podman exec "$id" weft --timeout 2 worker list >/dev/null 2>&1 && { up=true; break; }
    sleep 0.2
  done
  podman logs "$id"
  podman exec "$id" sh -c 'id -u; grep -E "^(CapEff|NoNewPrivs)" /proc/1/status'
  podman rm -f -t 5 "$id" >/dev/null
  $up || { echo "build: the coordinator in the image did not answer" >&2; exit 1; }
  echo "build: the image runs"
fi
