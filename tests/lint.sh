#!/usr/bin/env bash
# clang-tidy over our C++ sources (checks in .clang-tidy); silent when they are clean.
#   tests/lint.sh [--all]     --all: also the files that include gRPC, minutes each
set -euo pipefail
cd "$(dirname "$0")/.."

build=build/release
[ -f $build/compile_commands.json ] || cmake --preset release >/dev/null
# Left out of it: what clang 14 cannot read, for it knows no AMX, and what only CUDA builds hold.
mapfile -t files < <(git ls-files -- '*.cc' ':!*_test.cc' ':!*_simd.cc' ':!kernels/cpu/isa.cc' \
  ':!*_cuda.cc' ':!*/nccl_declarations_check.cc' ':!*/cudnn_declarations_check.cc')
if [ "${1:-}" != --all ]; then
  # What a file includes stands in the compiler's dependency records.
  mapfile -t heavy < <(ninja -C $build -t deps 2>/dev/null |
    awk -v root="$PWD/" '/: #deps/ { getline source; sub(/^ +(\.\.\/)*/, "", source)
        if (index(source, root) == 1) source = substr(source, length(root) + 1) }
      /grpcpp|\.pb\.h/ { print source }' | sort -u)
  mapfile -t files < <(comm -23 <(printf '%s\n' "${files[@]}" | sort) \
    <(printf '%s\n' "${heavy[@]}" | sort))
fi
printf '%s\n' "${files[@]}" |
  xargs -P "$(nproc)" -n 4 clang-tidy -p $build --quiet 2>/dev/null
echo "lint: ${#files[@]} files clean"
