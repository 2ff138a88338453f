#!/usr/bin/env bash
# Runs the fuzz targets, built with clang's libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer.
#   tests/fuzz/run.sh [--minutes N] [--jobs N] [TARGET...]
# Each target (default: all) runs for N minutes (default 5), N of them at a time (default 1). What they
# learn stays in build/fuzz/corpus, what they find goes to build/fuzz/findings: the exit status is then 1.
# A finding that is mended goes to tests/fuzz/corpus/TARGET/regression-*, which CTest tries every time.
# Needs Debian's clang, libclang-rt-14-dev and libomp-dev.
set -euo pipefail
cd "$(dirname "$0")/../.."

minutes=5
jobs=1
targets=()
while [ $# -gt 0 ]; do
  case $1 in
    --minutes) minutes=$2; shift 2 ;;
    --jobs) jobs=$2; shift 2 ;;
    -*) sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    *) targets+=("$1"); shift ;;
  esac
done

cmake --preset fuzz >/dev/null
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(cut -d ' ' -f 1 build/fuzz/fuzz_seeds.txt)
cmake --build --preset fuzz --target "${targets[@]/#/fuzz_}"

one() {
  local target=$1 seconds=$2 log=build/fuzz/$1.log
  local folders
  read -ra folders < <(sed -n "s/^$target //p" build/fuzz/fuzz_seeds.txt)
  mkdir -p "build/fuzz/corpus/$target" "build/fuzz/findings"
  # A chat template or a plan may take a second under the sanitizers, and the planner some memory.
  if ! UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
    "build/fuzz/bin/fuzz_$target" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=3000 \
    -max_len=16384 -print_final_stats=1 -artifact_prefix="build/fuzz/findings/$target-" \
    "build/fuzz/corpus/$target" "${folders[@]}" >"$log" 2>&1; then
    grep -E 'ERROR|runtime error|CHECK|Test unit written|SUMMARY' "$log" | head -n 5 || true
    echo "fuzz: $target: FOUND SOMETHING; $log"
    return 1
  fi
  echo "fuzz: $target: clean after $(awk '/number_of_executed_units/ {print $2}' "$log") inputs," \
    "$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1) edges"
}
export -f one
printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I '{}' bash -c "one '{}' $((minutes * 60))"
echo "fuzz: all clean"
