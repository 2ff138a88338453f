#!/usr/bin/env bash
# Installs the Debian 12 packages that Weft needs. Safe to run again: does nothing when all are there.
#   deploy/install.sh [--runtime] [--images] [--cuda]
#     (default)   compilers, libraries, test and lint tools, the quick start's text
#     --runtime   only what the built programs need to run
#     --images    also the tools that build and run the container image (deploy/docker/build.sh)
#     --cuda      also a CUDA toolkit in /usr/local/cuda where there is none (deploy/install_cuda.sh)
set -euo pipefail

build=(
  build-essential cmake ninja-build ccache mold pkg-config git
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  libdnnl-dev libgloo-dev libgomp1
  libboost-dev libboost-context-dev nlohmann-json3-dev libyaml-cpp-dev libcli11-dev libspdlog-dev libxxhash-dev liburing-dev
  libsqlite3-dev libssl-dev prometheus-cpp-dev
  libutf8proc-dev libpcre2-dev libpng-dev libjpeg62-turbo-dev zlib1g-dev
)
tests=(
  libgtest-dev libgmock-dev clang-format shellcheck
  python3 python3-venv python3-yaml python3-grpcio prometheus procps
  fish zsh
  bible-kjv bible-kjv-text
)
runtime=(
  libgrpc++1.51 libprotobuf32 libdnnl2 libgloo0 libgomp1 libyaml-cpp0.7 libspdlog1.10
  libsqlite3-0 libssl3 libprometheus-cpp-core1.0 libprometheus-cpp-pull1.0
  libutf8proc2 libpcre2-8-0 libpng16-16 libjpeg62-turbo zlib1g liburing2
)
images=(buildah debootstrap podman runc catatonit skopeo containernetworking-plugins)

wanted=("${build[@]}" "${tests[@]}")
cuda=false
for argument in "$@"; do
  case $argument in
    --runtime) wanted=("${runtime[@]}") ;;
    --images) wanted+=("${images[@]}") ;;
    --cuda)
      wanted+=(python3-pip)
      cuda=true
      ;;
    *)
      sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
      exit 2
      ;;
  esac
done

missing=()
for package in "${wanted[@]}"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
    missing+=("$package")
done
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || [ ${#missing[@]} -eq 0 ] || {
    echo "install: run as root, or install sudo; missing packages: ${missing[*]}" >&2
    exit 1
  }
  as_root=(sudo)
fi
if [ ${#missing[@]} -eq 0 ]; then
  echo "install: all ${#wanted[@]} Debian packages are installed"
else
  echo "install: installing ${#missing[@]} Debian packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  echo "install: done"
fi
# sudo forgets the environment, and with it where the user's own toolkit is.
$cuda || exit 0
"${as_root[@]}" env "PATH=$PATH" "CUDA_HOME=${CUDA_HOME:-/usr/local/cuda}" \
  "$(dirname "$0")/install_cuda.sh"
