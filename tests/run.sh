#!/usr/bin/env bash
# Sets up, builds and runs all tests. Quick the second time.
#   tests/run.sh [--preset release|debug|asan|tsan] [--label unit|e2e|chaos|slow]... [--filter REGEX]
# Closes with the totals: "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")/.."

preset=release
select=()
while [ $# -gt 0 ]; do
  case $1 in
    --preset) preset=$2; shift 2 ;;
    --label) select+=(-L "$2"); shift 2 ;;
    --filter) select+=(-R "$2"); shift 2 ;;
    *) sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done

./deploy/install.sh
echo "build: preset $preset"
cmake --preset "$preset" >"/tmp/weft-configure.$$" 2>&1 || { cat "/tmp/weft-configure.$$"; exit 1; }
rm -f "/tmp/weft-configure.$$"
cmake --build --preset "$preset"

export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:abort_on_error=0}
export LSAN_OPTIONS="${LSAN_OPTIONS:-suppressions=$PWD/tests/lsan.supp}"
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}
if [ "$preset" = tsan ]; then
  # libgomp is not instrumented: with one compute thread only our own threads are watched.
  export OMP_NUM_THREADS=1
  export TSAN_OPTIONS="${TSAN_OPTIONS:-halt_on_error=1 suppressions=$PWD/tests/tsan.supp}"
fi

log=build/$preset/tests.log
echo "test: ctest ${select[*]:-all}; details in $log"
status=0
# Two more than cores: of the tests that run processes, two at a time wait for them.
ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j $(($(nproc) + 2)) \
  "${select[@]}" >"$log" 2>&1 || status=$?
grep -E '\(Failed\)|\(Timeout\)|\(Not Run\)|\*\*\*' "$log" || true
summary=$(grep -E '^[0-9]+% tests passed' "$log") || { tail -n 40 "$log"; exit 1; }
failed=$(sed -E 's/.*, ([0-9]+) tests failed out of.*/\1/' <<<"$summary")
total=$(sed -E 's/.* out of ([0-9]+)$/\1/' <<<"$summary")
if [ "$status" -ne 0 ]; then
  grep -A 6 -E ': Failure$|ERROR: .*Sanitizer|runtime error: ' "$log" | cut -c 1-400 | head -n 80 || true
  sed -n '/The following tests FAILED/,$p' "$log"
fi
echo "$((total - failed)) passed, $failed failed"
exit "$status"
