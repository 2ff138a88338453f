#!/usr/bin/env bash
# clang-tidy over our C++ sources (checks in .clang-tidy); silent when they are clean.
# The release it takes comes from PyPI: unlike Debian 12's it passes over the system's headers, which
# takes two thirds of the time away, and knows AMX.
set -euo pipefail
cd "$(dirname "$0")/.."

build=build/release
tools=build/lint-venv
[ -f $build/compile_commands.json ] || cmake --preset release >/dev/null
if [ ! -x $tools/bin/clang-tidy ]; then
  python3 -m venv $tools
  $tools/bin/pip install --quiet clang-tidy==23.1.4
fi
# Left out of it: tests, and what only CUDA builds hold.
mapfile -t files < <(git ls-files -- '*.cc' ':!*_test.cc' ':!*_cuda.cc' \
  ':!*/nccl_declarations_check.cc' ':!*/cudnn_declarations_check.cc')
# Its own headers come first; OpenMP's is the compiler's.
openmp=$(dirname "$(g++ -print-file-name=include/omp.h)")
printf '%s\n' "${files[@]}" |
  xargs -P "$(nproc)" -n 4 $tools/bin/clang-tidy -p $build --quiet \
    --extra-arg=-idirafter"$openmp" \
    --extra-arg=-Wno-deprecated-declarations --extra-arg=-Wno-unknown-warning-option 2>/dev/null
echo "lint: ${#files[@]} files clean"
