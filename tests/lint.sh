#!/usr/bin/env bash
# clang-tidy over our C++ sources (checks in .clang-tidy); silent when they are clean.
#   tests/lint.sh [--all]
# By default over those that commits of the last twelve hours of history touched, and over a third of
# the others, the next third the next day: within three days it sees each file. Days are those of the
# last commit: the same commit always has the same files. --all: all of them.
# The release it takes comes from PyPI: unlike Debian 12's it passes over the system's headers, which
# takes two thirds of the time away, and knows AMX.
set -euo pipefail
cd "$(dirname "$0")/.."

build=build/lint
units=$build/units
tools=build/lint-venv

# Its own headers come first; OpenMP's is the compiler's.
tidy() {
  $tools/bin/clang-tidy -p "$1" --quiet --extra-arg=-idirafter"$(dirname "$(g++ -print-file-name=include/omp.h)")" \
    --extra-arg=-Wno-deprecated-declarations --extra-arg=-Wno-unknown-warning-option "${@:2}" 2>/dev/null
}
if [ "${1:-}" = --one ]; then  # several files as one; when that is not clean, what each file has
  tidy $units "$2" >/dev/null || {
    tidy $build "${@:3}"
    echo "lint: clean one by one but not as one, which takes twice as long: ${*:3}" >&2
  }
  exit
fi

# Not what tests/run.sh builds: that compiles several sources as one, and here each has a line.
cmake --preset release -B $build -DWEFT_UNITY=OFF >/dev/null
cmake --build $build --target weft_proto_sources >/dev/null
if [ ! -x $tools/bin/clang-tidy ]; then
  python3 -m venv $tools
  $tools/bin/pip install --quiet clang-tidy==23.1.4
fi
# Left out of it: tests, and what only CUDA builds hold.
mapfile -t files < <(git ls-files -- '*.cc' ':!*_test.cc' ':!*_cuda.cc' \
  ':!*/nccl_declarations_check.cc' ':!kernels/cuda/*_declarations_check.cc')
if [ "${1:-}" != --all ]; then
  time=$(git log -1 --format=%ct)
  mapfile -t files < <(awk -v third=$((time / 86400 % 3)) '
    NR == FNR { touched[$0]; next }
    $0 in touched || FNR % 3 == third' \
    <(git log --since="@$((time - 43200))" --name-only --format= | sort -u) \
    <(printf '%s\n' "${files[@]}"))
fi
python3 tests/lint_units.py $build $units "${files[@]}" |
  xargs -P "$(nproc)" -L 1 ./tests/lint.sh --one
echo "lint: ${#files[@]} files clean"
