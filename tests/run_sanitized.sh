#!/usr/bin/env bash
# Runs tests under AddressSanitizer with UndefinedBehaviorSanitizer and under ThreadSanitizer.
#   tests/run_sanitized.sh [--all | --threads]
# By default, of the programs that parse foreign input, compute on raw memory or share it between
# threads (except kernels_cuda_host_test, which takes longest):
#   - those that read foreign files, under AddressSanitizer, every time;
#   - of the others one of five turns, the next one the next day. A turn has one sanitizer and what
#     needs the same libraries: most of the time goes to building them. So within five days each
#     program runs, except for the cases that --one leaves out;
#   - in turns of AddressSanitizer, of those that need hardly another library than these, the one
#     whose folder changed most in the two days before.
# docs/decisions/0015 says why not all that changed.
# Kernels, a quarter of the build, are built with AddressSanitizer when kernels_test runs, which gives
# them shapes of all kinds.
# Days are those of the last commit: the same commit always runs the same programs.
# --all: every test, which builds everything twice more.
# --threads: what takes turns under ThreadSanitizer, all of it, and the parts of the worker's daemon.
# Nothing with remote calls: gRPC is not instrumented and has locks of its own, so that whatever
# passes through it looks like a race.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" = --all ]; then
  for preset in asan tsan; do ./tests/run.sh --preset "$preset"; done
  exit
fi

if [ "${1:-}" = --one ]; then  # a program that run built
  log=build/$2/$3.log
  # Except those that count bytes of what others do, too, and thousands of calls of one library.
  filter='-*Predict*:*WhatTheModel*:*OfThePlanner*:PipelineMemory.*:*LinkOfRanks*:*OnAmx'
  case "$2 $3" in
    # What others of these do, too, for many minutes.
    *" engine_offload_test")
      filter+=':OffloadedRanks.AnyNumber*:OffloadedRanks.HaveThemInGroups*'
      filter+=':OffloadedStages.HaveA*:OffloadedStages.HaveWeightsThat*'
      filter+=':DeviceUpdatedUnits.HaveT*:DeviceUpdatedUnits.GoOn*:StreamedParametersTest.HaveThemWhich*' ;;
    # Many meshes of many methods; ranks are in the cases that stay.
    *" engine_peft_test") filter+=':*MeshesFollowOne*' ;;
    # Shared updates and stages, as those that follow ranks without them.
    *" engine_experts_test") filter+=':*LeavesTheSameBits:*LeaveTheSameBits' ;;
    # The planner's other searches run on one thread each.
    "tsan weft_planner_test") filter='*OnAnyNumberOfThreads*' ;;
    # These have remote calls.
    "tsan daemon_test") filter='-AgentTest.*:Health.AWorkerOnAFullDisk*' ;;
  esac
  if ! "build/$2/bin/$3" --gtest_brief=1 --gtest_filter="$filter" >"$log" 2>&1; then
    cat "$log"
    exit 1
  fi
  echo "sanitized: $2 $3"
  exit
fi

# What runs every time.
always=(weft_common_test weft_yaml_test safetensors_test tokenizer_test documents_test image_test
  token_file_test chat_template_test)
# What takes turns: a preset and its programs. What takes longest comes first. Not comm_test under
# ThreadSanitizer: without a report, but it does not always end within minutes.
turns=(
  "asan kernels_test engine_tensor_test engine_autograd_test comm_test nccl_host_test weft_spec_test"
  "tsan engine_offload_test engine_parallel_test"
  "asan engine_experts_test engine_train_test engine_pipeline_test engine_context_test
   engine_local_steps_test trainer_control_test trainer_test"
  "tsan weft_planner_test env_fault_test coordinator_store_test coordinator_service_test
   engine_data_test checkpoint_test"
  "asan engine_offload_test engine_data_test engine_parallel_test huggingface_test env_fault_test
   checkpoint_test coordinator_store_test coordinator_scheduler_test")
# One of these more: programs of other turns, and those that have none. In the first turn the whole
# engine is not built.
techniques="engine_peft_test engine_sparse24_test engine_weight_quantization_test engine_fp8_test"
techniques+=" engine_pruning_test engine_structured_matrices_test engine_structured_pruning_test"
techniques+=" engine_over_parameterization_test engine_growth_test engine_sub_networks_test"
techniques+=" engine_low_rank_core_test engine_nested_model_test engine_value_learning_test"
techniques+=" engine_precision_test engine_optim_test engine_models_test"
more=(
  "engine_nn_test engine_optim_test env_fault_test"
  ""
  "$techniques engine_data_test engine_offload_test"
  ""
  "$techniques engine_context_test engine_local_steps_test")

export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:detect_stack_use_after_return=1}
export LSAN_OPTIONS="${LSAN_OPTIONS:-suppressions=$PWD/tests/lsan.supp}"
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}
export TSAN_OPTIONS="${TSAN_OPTIONS:-halt_on_error=1 suppressions=$PWD/tests/tsan.supp}"
export OMP_WAIT_POLICY=passive

day=$(($(git log -1 --format=%ct) / 86400))
turn=$((day % ${#turns[@]}))

# Of programs the one whose folder, without folders below it that have programs, has most lines that
# commits of two days added or removed; none where there are none. A build knows the folders.
most_changed() {
  git log --since="@$(($(git log -1 --format=%ct) - 2 * 86400))" --no-merges --numstat --format= \
    -- '*.cc' '*.h' '*.cu' '*.cuh' | awk -v candidates="$1" '
    NR == FNR { folder_of[$1] = $2; known[$2]; next }
    {
      folder = $3
      while (sub("/[^/]*$", "", folder) && !(folder in known)) {}
      lines[folder] += $1 + $2
    }
    END {
      count = split(candidates, programs, " ")
      for (i = 1; i <= count; i++) {
        changed = lines[folder_of[programs[i]]]
        if (changed > most) { most = changed; chosen = programs[i] }
      }
      if (chosen) print chosen
    }' build/asan/test_folders.txt -
}

cores=$(nproc)  # now: OMP_NUM_THREADS, which comes below, limits what it says
run() {
  local preset=$1
  shift
  echo "sanitized: preset $preset, $# test programs"
  cmake --build --preset "$preset" --target "$@"
  # As many at a time as there are cores: most of them compute on one.
  printf '%s\n' "$@" | xargs -P "$cores" -I '{}' ./tests/run_sanitized.sh --one "$preset" '{}'
}

if [ "${1:-}" = --threads ]; then
  programs=(daemon_test trainer_control_test)
  for one in "${turns[@]}"; do
    read -r -d '' -a of_turn <<<"$one" || true
    if [ "${of_turn[0]}" = tsan ]; then programs+=("${of_turn[@]:1}"); fi
  done
  export OMP_NUM_THREADS=1  # as below
  cmake --preset tsan >/dev/null
  run tsan "${programs[@]}"
  exit
fi

read -r -d '' -a programs <<<"${turns[turn]}" || true
preset=${programs[0]}
programs=("${programs[@]:1}")
kernels=OFF
if [[ " ${programs[*]} " == *" kernels_test "* ]]; then kernels=ON; fi
cmake --preset asan -DWEFT_SANITIZE_KERNELS=$kernels >/dev/null
if [ "$preset" = asan ]; then
  changed=$(most_changed "${more[turn]}")
  run asan "${always[@]}" "${programs[@]}" ${changed:+"$changed"}
else
  run asan "${always[@]}"
  # GNU OpenMP is not instrumented: with one compute thread only our own threads are watched.
  export OMP_NUM_THREADS=1
  cmake --preset tsan >/dev/null
  run tsan "${programs[@]}"
fi
echo "sanitized: all clean, turn $((turn + 1)) of ${#turns[@]}"
