#!/usr/bin/env bash
# Builds what is other with CUDA: the kernels for all targets, and the programs, tests and benchmarks
# that hold them; warnings are errors. Checks that no kernel spills registers that did not before
# (docs/benchmarks/gpu/resources.json).
#   tests/gpu/compile.sh [OPTION OF CMAKE...]
#     -DWEFT_SERVICE=OFF   without the service and its libraries
set -euo pipefail
cd "$(dirname "$0")/../.."

command -v nvcc >/dev/null || PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
if ! command -v nvcc >/dev/null; then
  echo "compile: no nvcc on this machine; the CUDA kernels were only compiled as C++"
  exit 0
fi
cmake --preset cuda -DWEFT_SERVICE=ON "$@" >/dev/null
cmake --build --preset cuda --target weft_with_cuda
python3 tests/gpu/resources.py
