#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "worker/engine/techniques/averaging/weight_average.h"
#include "worker/engine/techniques/technique.h"

namespace weft::engine {
namespace {

/// Weight averages where the parameters are: one for each optimizer.
class Averaging : public Technique {
 public:
  explicit Averaging(AveragingSpec spec) : spec_(std::move(spec)) {}

  Status OnTraining(const TrainingParts& parts) override {
    parts_ = parts;
    for (const UpdatedParameters& updated : parts.updated) {
      Context context = parts.ContextOf(updated);
      WEFT_ASSIGN_OR_RETURN(auto average,
                            WeightAverage::New(context, spec_, *parts.parameters, updated.parts));
      averages_.push_back({&updated, std::move(average)});
    }
    return OkStatus();
  }

  bool ReadsUpdatedParameters() const override { return true; }

  Status OnUpdated(int64_t updates) override {
    for (Average& average : averages_) {
      Context context = parts_.ContextOf(*average.of);
      ProfileScope scope(context.profiler, "weight average");
      WEFT_RETURN_IF_ERROR(average.weights->Observe(context, updates));
    }
    return OkStatus();
  }

  Result<std::vector<AveragedParameter>> EvaluatedAverages(int64_t updates) override {
    std::vector<AveragedParameter> all;
    for (Average& average : averages_) {
      Context context = parts_.ContextOf(*average.of);
      WEFT_ASSIGN_OR_RETURN(const std::vector<AveragedParameter> some,
                            average.weights->Averages(context, updates));
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }

  std::vector<NamedTensor> StateTensors() override {
    std::vector<NamedTensor> tensors;
    for (const Average& average : averages_) {
      for (NamedTensor& tensor : average.weights->StateTensors()) {
        tensors.push_back(std::move(tensor));
      }
    }
    return tensors;
  }

 private:
  struct Average {
    const UpdatedParameters* of = nullptr;
    std::unique_ptr<WeightAverage> weights;
  };

  AveragingSpec spec_;
  TrainingParts parts_;
  std::vector<Average> averages_;
};

}  // namespace

std::unique_ptr<Technique> NewAveraging(const TechniqueInputs& inputs) {
  const AveragingSpec& spec = inputs.train.averaging;
  return spec.kind == "none" ? nullptr : std::make_unique<Averaging>(spec);
}

}  // namespace weft::engine
