#!/bin/sh
# Runs a compile command, and keeps what ptxas says of its kernels next to the object, in OBJECT.ptxas:
#   tests/gpu/keep_ptxas.sh nvcc ... -o OBJECT ...
object=
previous=
for argument in "$@"; do
  [ "$previous" = -o ] && object=$argument
  previous=$argument
done
"$@" 2>"$object.ptxas"
status=$?
grep -vE '^ptxas info|^    [0-9]+ bytes stack frame' "$object.ptxas" >&2
exit $status
