#!/usr/bin/env bash
# Installs a CUDA toolkit (compiler, runtime, cuBLAS, NCCL) from NVIDIA's wheels on PyPI, where none
# is. No GPU and no driver are needed to build with it.
#   deploy/install_cuda.sh [PREFIX]
#     (default)   into /usr/local/cuda, unless nvcc is there, in $CUDA_HOME or on the PATH
#     PREFIX      into this folder, whatever other toolkit there is
# Safe to run again: does nothing when PREFIX holds the wheels of deploy/cuda_wheels.txt.
set -euo pipefail
wheels=$(dirname "$0")/cuda_wheels.txt
prefix=${1:-}

if [ -z "$prefix" ]; then
  for nvcc in "$(command -v nvcc || true)" "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"; do
    [ -x "$nvcc" ] || continue
    echo "install_cuda: a CUDA toolkit is installed: $nvcc"
    exit 0
  done
  prefix=/usr/local/cuda
fi
mark=$prefix/.wheels
if [ -f "$mark" ] && cmp -s "$wheels" "$mark"; then
  echo "install_cuda: the CUDA toolkit in $prefix is up to date"
  exit 0
fi
if [ -e "$prefix" ] && [ ! -f "$mark" ] && [ -n "$(ls -A "$prefix")" ]; then
  echo "install_cuda: $prefix exists and is not of this script; choose another PREFIX" >&2
  exit 1
fi
if [ "$(uname -m)" != x86_64 ]; then
  echo "install_cuda: deploy/cuda_wheels.txt is for x86-64, this is $(uname -m)" >&2
  exit 1
fi

new=$prefix.new
trap 'rm -rf "$new"' EXIT
rm -rf "$new"
mkdir -p "$new/wheels"
echo "install_cuda: downloading the wheels of $wheels (0.7 GB)"
python3 -m pip download --quiet --disable-pip-version-check --require-hashes --no-deps \
  --only-binary=:all: --dest "$new/wheels" --requirement "$wheels"
for wheel in "$new"/wheels/*.whl; do
  python3 -m zipfile -e "$wheel" "$new/wheels"
  rm "$wheel"
done

# The wheels share nvidia/cu13, laid out like a toolkit except for links; NCCL has a folder of its own.
mkdir "$new/toolkit"
for part in cu13 nccl; do cp -al "$new/wheels/nvidia/$part/." "$new/toolkit/"; done
cp "$wheels" "$new/toolkit/.wheels"
(
  cd "$new/toolkit"
  chmod +x bin/* nvvm/bin/*
  ln -s lib lib64
  mkdir -p targets/x86_64-linux
  ln -s ../../include targets/x86_64-linux/include
  ln -s ../../lib targets/x86_64-linux/lib
  cd lib
  for library in lib*.so.*; do
    [ -e "${library%%.so.*}.so" ] || ln -s "$library" "${library%%.so.*}.so"
  done
)
rm -rf "$prefix"
mkdir -p "$(dirname "$prefix")"
mv "$new/toolkit" "$prefix"
echo "install_cuda: $("$prefix/bin/nvcc" --version | sed -n '4p') in $prefix"
[ "$prefix" = /usr/local/cuda ] || echo "install_cuda: build with CUDACXX=$prefix/bin/nvcc cmake --preset cuda"
