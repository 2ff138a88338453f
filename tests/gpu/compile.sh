#!/usr/bin/env bash
# Compiles the CUDA kernels for all targets, with warnings as errors, and checks that none spills
# registers that did not before (docs/benchmarks/gpu/resources.json).
set -euo pipefail
cd "$(dirname "$0")/../.."

command -v nvcc >/dev/null || PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
if ! command -v nvcc >/dev/null; then
  echo "compile: no nvcc on this machine; the CUDA kernels were only compiled as C++"
  exit 0
fi
cmake --preset cuda -DWEFT_SERVICE=OFF >/dev/null
cmake --build --preset cuda --target weft_kernels_cuda
python3 tests/gpu/resources.py
