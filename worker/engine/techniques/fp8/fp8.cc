// Products of blocks in FP8: their scales follow the magnitudes that the steps have seen.
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "worker/engine/techniques/fp8/fp8_products.h"
#include "worker/engine/techniques/technique.h"
#include "worker/engine/tensor/profiler.h"

namespace weft::engine {
namespace {

class Fp8 : public Technique {
 public:
  explicit Fp8(const TechniqueInputs& inputs)
      : factory_(inputs.train.fp8, inputs.with_gradients, inputs.tensor_ranks) {}

  ProductsFactory* BlockProducts(ProductsFactory* /*before*/) override { return &factory_; }

  Status OnTraining(const TrainingParts& parts) override {
    if (factory_.scaling().spec() != parts.job->train.fp8) {
      return InvalidError("the model was made for another train.fp8 than the job has");
    }
    context_ = parts.context;
    take_maxima_ = parts.take_maxima;
    return OkStatus();
  }

  // Also after a step that was skipped: its magnitudes are as true as any.
  Status OnStepEnd(const FinishedStep& step) override {
    Fp8Scaling& scaling = factory_.scaling();
    if (const TensorView magnitudes = scaling.magnitudes()) {
      WEFT_RETURN_IF_ERROR(take_maxima_(magnitudes));
    }
    ProfileScope scope(context_->profiler, "FP8 scales");
    return scaling.FinishStep(*context_, step.step);
  }

  std::vector<NamedTensor> StateTensors() override { return factory_.scaling().StateTensors(); }
  void OnRestored(int64_t steps) override { factory_.scaling().Restored(steps); }

 private:
  Fp8ProductsFactory factory_;
  Context* context_ = nullptr;
  std::function<Status(const TensorView&)> take_maxima_;
};

}  // namespace

std::unique_ptr<Technique> NewFp8(const TechniqueInputs& inputs) {
  if (inputs.train.precision != "fp8") return nullptr;
  return std::make_unique<Fp8>(inputs);
}

}  // namespace weft::engine
