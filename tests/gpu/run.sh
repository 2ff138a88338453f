#!/usr/bin/env bash
# Builds, tests and measures the GPU back end on a machine with nvcc, CMake, g++ and a GPU:
#   tests/gpu/run.sh [--quick] [--only STAGE...] [--minutes N] [--list]
# See docs/benchmarks/gpu/README.md.
set -euo pipefail
cd "$(dirname "$0")/../.."
exec python3 tests/gpu/run.py "$@"
