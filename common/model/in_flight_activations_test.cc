#include "common/model/in_flight_activations.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/pipeline/messages.h"
#include "common/pipeline/named_schedule.h"
#include "common/rng.h"

namespace weft {
namespace {

/// The same step by step, of all micro-batches and messages one by one.
int64_t MostStepByStep(const PipelineSchedule& schedule, int64_t rank,
                       const std::vector<PassBytes>& passes,
                       const InFlightActivations::NonPassBytes& beside) {
  const int64_t next = (rank + 1) % schedule.ranks;
  const int64_t previous = (rank + schedule.ranks - 1) % schedule.ranks;
  const auto told_by_next = TakenBeforeSending(schedule, next, PipelineSide::kPrevious);
  const auto told_by_previous = TakenBeforeSending(schedule, previous, PipelineSide::kNext);
  std::map<std::pair<int64_t, int64_t>, int64_t> held;  // by chunk and micro-batch
  std::map<int64_t, int64_t> batches;
  for (int64_t i = 0; i < schedule.micro_batches; ++i) batches[i] = beside.batch;
  size_t outputs_in = 0, gradients_in = 0;
  int64_t outputs_out = 0, gradients_out = 0, most = 0;
  for (const PipelineStep& step : schedule.steps[static_cast<size_t>(rank)]) {
    const int64_t stage = schedule.StageOf(rank, step.chunk);
    const bool first = stage == 0, last = stage + 1 == schedule.stages();
    const PassBytes& own = passes[static_cast<size_t>(step.chunk)];
    int64_t& here = held[{step.chunk, step.micro_batch}];
    const bool forward = step.op == PipelineOp::kForward;
    if (step.op != PipelineOp::kBackwardWeight) {
      if (forward && !first) ++outputs_in;
      if (!forward && !last) ++gradients_in;
      here = forward ? own.forward : own.backward;
      const int64_t outputs_taken = gradients_in == 0 ? 0 : told_by_next[gradients_in - 1];
      const int64_t gradients_taken = outputs_in == 0 ? 0 : told_by_previous[outputs_in - 1];
      int64_t bytes =
          beside.output * (outputs_out - outputs_taken + (outputs_in < told_by_previous.size())) +
          beside.gradient *
              (gradients_out - gradients_taken + (gradients_in < told_by_next.size()));
      for (const auto& [key, each] : held) bytes += each;
      for (const auto& [key, each] : batches) bytes += each;
      most = std::max(most, bytes);
      if (forward && !last) ++outputs_out;
      if (!forward && !first) ++gradients_out;
      if (!forward && step.chunk == 0) batches[step.micro_batch] = 0;
    }
    here = forward ? own.kept : step.op == PipelineOp::kBackwardInput ? own.waiting : 0;
  }
  return most;
}

TEST(InFlightActivations, AreTheMostOfAllTimesWhateverAChunkTakes) {
  struct Named {
    const char* kind;
    int64_t ranks, chunks, micro_batches;
  };
  PhiloxStream random({3, 0, 0});
  const auto below = [&](uint64_t limit) { return static_cast<int64_t>(random.Next() % limit); };
  for (const Named& named : {Named{"gpipe", 3, 1, 5}, Named{"1f1b", 4, 1, 9},
                             Named{"zero_bubble", 4, 1, 9}, Named{"interleaved", 3, 2, 12},
                             Named{"interleaved", 4, 5, 4}, Named{"interleaved", 2, 3, 16}}) {
    const PipelineSchedule schedule =
        NamedSchedule(named.kind, named.ranks, named.chunks, named.micro_batches).value();
    const InFlightActivations in_flight(schedule);
    for (int trial = 0; trial < 20; ++trial) {
      std::vector<PassBytes> passes(static_cast<size_t>(named.chunks));
      for (PassBytes& bytes : passes) {
        bytes = {.kept = 1 + below(100), .waiting = below(50)};
        bytes.forward = bytes.kept + below(50);
        bytes.backward = std::max(bytes.kept, bytes.waiting) + below(50);
      }
      const InFlightActivations::NonPassBytes beside{below(20), below(20), below(5)};
      for (int64_t rank = 0; rank < named.ranks; ++rank) {
        EXPECT_EQ(in_flight.Most(rank, passes, beside),
                  MostStepByStep(schedule, rank, passes, beside))
            << named.kind << ", rank " << rank;
        if (in_flight.FallsFrom(rank) == rank) continue;
        EXPECT_LE(in_flight.Most(rank, passes, beside), in_flight.Most(rank - 1, passes, beside))
            << named.kind << ", rank " << rank;
      }
    }
  }
}

}  // namespace
}  // namespace weft
