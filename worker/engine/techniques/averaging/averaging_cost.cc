#include "worker/engine/techniques/averaging/averaging_cost.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/technique_cost.h"

namespace weft {
namespace {

class AveragingCost : public TechniqueCost {
 public:
  std::string_view name() const override { return "averaging"; }

  bool Asked(const JobSpec& job) const override { return job.train.averaging.kind != "none"; }

  int64_t StateCopies(const JobSpec& job) const override {
    return Asked(job) ? AverageSlots(job.train.averaging) : 0;
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
