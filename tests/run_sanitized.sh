#!/usr/bin/env bash
# Runs tests under AddressSanitizer with UndefinedBehaviorSanitizer and under ThreadSanitizer.
#   tests/run_sanitized.sh [--all]
# By default the programs that parse foreign input, compute on raw memory or share it between threads,
# except kernels_cuda_host_test, which takes longest. Of these, the programs of folders that the last
# two days of history touched run every time, and a third of the others, another third each day.
# --all: every test, which builds everything twice more.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" = --all ]; then
  for preset in asan tsan; do ./tests/run.sh --preset "$preset"; done
  exit
fi

if [ "${1:-}" = --one ]; then  # a program that run built
  log=build/$2/$3.log
  # But for those that count bytes of what others do, too.
  filter='-*Predict*:*WhatTheModel*:*OfThePlanner*:PipelineMemory.*:*LinkOfRanks*'
  case "$2 $3" in
    # What others of these do, too, for many minutes.
    *" engine_offload_test")
      filter+=':OffloadedRanks.AnyNumber*:OffloadedRanks.HaveThemInGroups*'
      filter+=':OffloadedStages.HaveA*:OffloadedStages.HaveWeightsThat*'
      filter+=':KeptUnits.HaveT*:KeptUnits.GoOn*:StreamedParametersTest.HaveThemWhich*' ;;
    # The planner's other searches run on one thread each.
    "tsan weft_planner_test") filter='*OnAnyNumberOfThreads*' ;;
  esac
  if ! "build/$2/bin/$3" --gtest_brief=1 --gtest_filter="$filter" >"$log" 2>&1; then
    cat "$log"
    exit 1
  fi
  echo "sanitized: $2 $3"
  exit
fi

# What takes longest comes first.
memory=(engine_experts_test engine_train_test engine_offload_test weft_common_test weft_yaml_test
  weft_spec_test env_fault_test safetensors_test huggingface_test tokenizer_test documents_test kernels_test
  engine_tensor_test engine_autograd_test engine_data_test engine_parallel_test engine_pipeline_test
  engine_context_test engine_local_steps_test comm_test nccl_host_test
  checkpoint_test trainer_control_test trainer_test coordinator_store_test
  coordinator_scheduler_test)
# Not comm_test: without a report, but it does not always end within minutes.
threads=(engine_offload_test weft_planner_test env_fault_test engine_data_test checkpoint_test
  engine_parallel_test coordinator_store_test coordinator_service_test)

export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:detect_stack_use_after_return=1}
export LSAN_OPTIONS="${LSAN_OPTIONS:-suppressions=$PWD/tests/lsan.supp}"
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}
export TSAN_OPTIONS="${TSAN_OPTIONS:-halt_on_error=1 suppressions=$PWD/tests/tsan.supp}"
export OMP_WAIT_POLICY=passive

# Counted from the last commit, so that the same commit always runs the same programs.
last=$(git log -1 --format=%ct)
touched=$(git log --since="$((last - 2 * 86400))" --name-only --format= | sort -u)
day=$((last / 86400))

# Those of the test programs whose turn it is; says which are left out.
its_turn() {
  local preset=$1 number=0 program folder skipped=()
  shift
  for program in "$@"; do
    folder=$(awk -v program="$program" '$1 == program { print $2 }' "build/$preset/test_folders.txt")
    number=$((number + 1))
    if grep -q "^$folder/" <<<"$touched" || [ $(((number + day) % 3)) -eq 0 ]; then
      echo "$program"
    else
      skipped+=("$program")
    fi
  done
  [ ${#skipped[@]} -eq 0 ] || echo "sanitized: $preset, not today: ${skipped[*]}" >&2
}

cores=$(nproc)  # now: OMP_NUM_THREADS, which comes below, limits what it says
run() {
  local preset=$1
  shift
  cmake --preset "$preset" >/dev/null
  local programs
  mapfile -t programs < <(its_turn "$preset" "$@")
  set -- "${programs[@]}"
  echo "sanitized: preset $preset, $# test programs"
  [ $# -gt 0 ] || return 0
  cmake --build --preset "$preset" --target "$@"
  # As many at a time as there are cores: most of them compute on one.
  printf '%s\n' "$@" | xargs -P "$cores" -I '{}' ./tests/run_sanitized.sh --one "$preset" '{}'
}
run asan "${memory[@]}"
# GNU OpenMP is not instrumented: with one compute thread only our own threads are watched.
export OMP_NUM_THREADS=1
run tsan "${threads[@]}"
echo "sanitized: all clean"
