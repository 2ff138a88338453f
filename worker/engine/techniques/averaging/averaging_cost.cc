#include "worker/engine/techniques/averaging/averaging_cost.h"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/technique_cost.h"
#include "common/spec/features.h"

namespace weft {

// A technique before this one in the registry.
const TechniqueCost& StructuredPruningTechniqueCost();

namespace {

using namespace features;

const Feature kAveraging = {
    .name = "weight averaging",
    .setting = "train.averaging",
    .asked = [](const JobSpec& job) { return job.train.averaging.kind != "none"; },
    .shown = [](const JobSpec& job) { return "train.averaging " + job.train.averaging.kind; }};

class AveragingCost : public TechniqueCost {
 public:
  std::string_view name() const override { return "averaging"; }

  const Feature& feature() const override { return kAveraging; }
  std::span<const Refusal> refusals() const override {
    static const Refusal rows[] = {
        {&kAveraging, &kScheduleFree, "schedule-free AdamW averages by itself", kOneOfTwo},
        {&kAveraging, &kDelayedUpdate, "averages would see weights that are being updated",
         kOneOfTwo},
        {&kAveraging, &kParametersInFile,
         "averages reside on the host, and are as large as the weights", kOneOfTwo},
        {&kAveraging, &kLocalSteps, "averages would be of what one rank has learned", kOneOfTwo},
        {&kAveraging, &kKeptGrowthState, "averages begin anew in each phase",
         "growth.optimizer_state new"},
        {&kAveraging, &StructuredPruningTechniqueCost().feature(),
         "the export of a search has the initial weights", kOneOfTwo},
    };
    return rows;
  }

  // In f32.
  int64_t StateBytes(const JobSpec& job, const ParameterInfo& parameter) const override {
    return Asked(job) ? 4 * AverageSlots(job.train.averaging) * parameter.Elements() : 0;
  }

  std::vector<StateName> ExportedAverages(const JobSpec& job, int64_t updates) const override {
    std::vector<StateName> names;
    if (!Asked(job)) return names;
    const AveragingSpec& spec = job.train.averaging;
    const int64_t taken = std::min(updates / spec.every_steps, AverageSlots(spec));
    for (int64_t slot = 0; slot < taken; ++slot) {
      names.push_back({AverageSlotPrefix(spec, slot), ""});
    }
    return names;
  }
};

}  // namespace

int64_t AverageSlots(const AveragingSpec& spec) {
  return spec.kind == "ema" ? 1 : spec.window;
}

std::string AverageSlotPrefix(const AveragingSpec& spec, int64_t slot) {
  return spec.kind == "ema" ? "ema/" : "lawa/" + std::to_string(slot) + "/";
}

const TechniqueCost& AveragingTechniqueCost() {
  static const AveragingCost cost;
  return cost;
}

}  // namespace weft
