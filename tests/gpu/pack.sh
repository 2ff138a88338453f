#!/usr/bin/env bash
# Collects what the GPU test needs of other projects, for a machine that has only compilers, CUDA and
# Python: headers, CMake files and shared libraries of this machine's Debian packages, in one archive.
#   tests/gpu/pack.sh [--programs ARCHITECTURE] [FOLDER]     default: build/gpu-pack, which git ignores
# With --programs the tests and benchmarks too, built here for that architecture (90a), so that the
# other machine compiles nothing.
# Fails when a library or program asks for a newer C or C++ library than Ubuntu 22.04 has.
set -euo pipefail
cd "$(dirname "$0")/../.."

packages=(
  nlohmann-json3-dev libcli11-dev libxxhash-dev libspdlog-dev libspdlog1.10 libfmt-dev libfmt9
  libdnnl-dev libdnnl2 libgloo-dev libgloo0
  libutf8proc-dev libutf8proc2 libpcre2-dev libpcre2-8-0 libpng-dev libpng16-16 libjpeg62-turbo-dev libjpeg62-turbo
  zlib1g-dev zlib1g liburing-dev liburing2 libgtest-dev libgmock-dev
)
programs=(kernels_cuda_test engine_cuda_test engine_ranks_cuda_test engine_bench kernels_bench
  sparse24_bench)
newest=(GLIBC_2.35 GLIBCXX_3.4.30)
# What every machine has that compiles C++.
own='^(linux-vdso|ld-linux-x86-64|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|gomp))\.so'

usage() { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
architecture=
if [ "${1:-}" = --programs ]; then
  architecture=${2:-}
  [[ $architecture =~ ^[0-9]+a?$ ]] || usage
  shift 2
fi
case ${1:-} in -*) usage ;; esac
folder=${1:-build/gpu-pack}
mkdir -p "$folder"
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
include=$tree/usr/include
lib=$tree/usr/lib/x86_64-linux-gnu
mkdir -p "$include" "$lib"

files=$(dpkg-query -L "${packages[@]}") || {
  echo "pack: a package is missing; hint: deploy/install.sh" >&2
  exit 1
}
while read -r file; do
  [ -d "$file" ] && continue
  case $file in
    /usr/include/x86_64-linux-gnu/*) to=$include/${file#/usr/include/x86_64-linux-gnu/} ;;
    /usr/include/* | */cmake/*) to=$tree$file ;;
    */libgtest*.a | */libgmock*.a) to=$tree$file ;;
    /usr/lib/libgloo.so*) to=$tree$file ;;
    *.so | *.so.[0-9]*) to=$lib/${file##*/} ;;
    *) continue ;;
  esac
  mkdir -p "${to%/*}"
  case $(readlink "$file" || true) in
    # It would lead to a library of the other machine.
    /*) ln -sf "$(basename "$(readlink "$file")")" "$to" ;;
    *) cp -Pp "$file" "$to" ;;
  esac
done <<<"$files"
# Gloo's alone name the place where Debian installs.
sed -i "s|\"/usr/lib/|\"\${_IMPORT_PREFIX}/lib/|" "$tree"/usr/share/cmake/Gloo/GlooTargets-*.cmake
# What these libraries need themselves.
find "$tree" -name '*.so*' -type f -exec ldd {} + | awk '$2 == "=>" { print $1, $3 }' | sort -u |
  while read -r name path; do
    [[ $name =~ $own ]] || [ -e "$lib/$name" ] || [ -e "$tree/usr/lib/$name" ] || cp -pL "$path" "$lib/$name"
  done

find "$tree" -xtype l -delete

if [ -n "$architecture" ]; then
  build=build/gpu-programs
  cmake --preset cuda -B $build -DWEFT_SERVICE=OFF "-DCMAKE_CUDA_ARCHITECTURES=$architecture" \
    '-DCMAKE_CUDA_FLAGS_RELWITHDEBINFO=-O3 -DNDEBUG' >/dev/null
  cmake --build $build --target "${programs[@]}"
  mkdir "$tree/programs"
  for program in "${programs[@]}"; do
    strip -o "$tree/programs/$program" "$build/bin/$program"
  done
fi

status=0
while read -r library; do
  for limit in "${newest[@]}"; do
    kind=${limit%_*}_
    wanted=$(objdump -T "$library" | grep -oE "\<${kind}[0-9.]+" | sort -Vu | tail -n 1 || true)
    if [ "$(printf '%s\n' "$limit" "${wanted:-$limit}" | sort -V | tail -n 1)" != "$limit" ]; then
      echo "pack: ${library##*/} needs $wanted, newer than $limit" >&2
      status=1
    fi
  done
done < <(find "$tree" '(' -name '*.so*' -o -path '*/programs/*' ')' -type f)
[ $status -eq 0 ] || exit 1

git describe --always --dirty --abbrev=12 >"$folder/commit" 2>/dev/null || echo unknown >"$folder/commit"
tar -C "$tree" -I 'gzip -1' -cf "$folder/third_party.tar.gz" usr
rm -f "$folder"/programs-*
if [ -n "$architecture" ]; then
  # Programs hold the same kernels: the dictionary reaches from one to the next.
  tar -C "$tree/programs" -I 'xz -6 -T1 --lzma2=preset=6,dict=256MiB' \
    -cf "$folder/programs-$architecture.tar.xz" "${programs[@]}"
fi
echo "pack: $(du -sh "$folder" | cut -f 1) in $folder for $(cat "$folder/commit")"
