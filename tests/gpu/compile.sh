#!/usr/bin/env bash
# Builds what is other with CUDA: the kernels, and the programs, tests and benchmarks that hold them;
# warnings are errors. Checks that no kernel spills registers that did not before
# (docs/benchmarks/gpu/resources.json).
#   tests/gpu/compile.sh [--all] [OPTION OF CMAKE...]
#     --all                for all targets; by default for one of them, the next one the next day: what
#                          ptxas and the compiler before it take of both is half of this script's time.
#                          Days are those of the last commit
#     -DWEFT_SERVICE=OFF   without the service and its libraries
set -euo pipefail
cd "$(dirname "$0")/../.."

command -v nvcc >/dev/null || PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
if ! command -v nvcc >/dev/null; then
  echo "compile: no nvcc on this machine; the CUDA kernels were only compiled as C++"
  exit 0
fi

targets=(80 90a)
if [ "${1:-}" = --all ]; then
  shift
else
  targets=("${targets[$(($(git log -1 --format=%ct) / 86400 % ${#targets[@]}))]}")
fi
cmake --preset cuda -DWEFT_SERVICE=ON -DCMAKE_CUDA_ARCHITECTURES="$(IFS=';' && echo "${targets[*]}")" \
  "$@" >/dev/null
cmake --build --preset cuda --target weft_with_cuda
python3 tests/gpu/resources.py
