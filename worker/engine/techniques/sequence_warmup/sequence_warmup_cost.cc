#include "worker/engine/techniques/sequence_warmup/sequence_warmup_cost.h"

#include <span>
#include <string>
#include <string_view>

#include "common/model/technique_cost.h"
#include "common/spec/features.h"

namespace weft {
namespace {

using namespace features;

const Feature kSequenceWarmup = {
    .name = "sequence-length warm-up",
    .setting = "train.sequence_warmup_steps",
    .asked = [](const JobSpec& job) { return job.train.sequence_warmup_steps > 0; },
    .shown =
        [](const JobSpec& job) {
          return "train.sequence_warmup_steps " + std::to_string(job.train.sequence_warmup_steps);
        }};

constexpr std::string_view kRunningText = "sequences are cut out of running text";

const Refusal kSequenceWarmupRefusals[] = {
    {&kSequenceWarmup, &kEncoder, kRunningText, "model.family gpt2 or llama"},
    {&kSequenceWarmup, &kNoConcatenation, kRunningText, "data.batching concatenate"},
    {&kSequenceWarmup, &kContextParallel, "context-parallel ranks shard whole sequences",
     "resources.context_parallel 1"},
    {&kSequenceWarmup, &kPhases, "each phase has sequences of one length",
     "phases with a sequence_length each"},
};

class SequenceWarmupCost : public TechniqueCost {
 public:
  std::string_view name() const override { return "sequence_warmup"; }
  const Feature& feature() const override { return kSequenceWarmup; }
  std::span<const Refusal> refusals() const override { return kSequenceWarmupRefusals; }

  Status Check(const JobSpec& job) const override {
    const TrainSpec& train = job.train;
    const int64_t length = SequenceLength(job);
    if (train.sequence_warmup_steps == 0 && train.sequence_warmup_start == 0) return OkStatus();
    if (train.sequence_warmup_steps == 0 || train.sequence_warmup_start == 0) {
      return InvalidError(
          "train.sequence_warmup_steps and train.sequence_warmup_start go together; hint: both, "
          "or neither");
    }
    if (train.sequence_warmup_steps > train.steps) {
      return InvalidError("train.sequence_warmup_steps " +
                          std::to_string(train.sequence_warmup_steps) +
                          " is more than train.steps " + std::to_string(train.steps));
    }
    // A model is checked without knowing its sequences, as for those of one token: all of that one
    // is trained on.
    const bool shorter = train.sequence_warmup_start < length || length == 1;
    if (train.sequence_warmup_start % 8 == 0 && shorter) return OkStatus();
    return InvalidError(
        "train.sequence_warmup_start " + std::to_string(train.sequence_warmup_start) +
        " must be a multiple of 8 below the " + std::to_string(length) + " tokens of a sequence");
  }

  bool ChangesExtent(const JobSpec& job) const override { return Asked(job); }
  void SetExtent(const JobSpec& job, int64_t step, StepExtent& extent) const override {
    extent.length = WarmedUpLength(job.train, step, extent.length);
  }
};

}  // namespace

const TechniqueCost& SequenceWarmupTechniqueCost() {
  static const SequenceWarmupCost cost;
  return cost;
}

}  // namespace weft
