// Quantised frozen weights, dequantised block by block.
#include <memory>

#include "worker/engine/techniques/technique.h"
#include "worker/engine/techniques/weight_quantization/weight_dequantizer.h"
#include "worker/engine/techniques/weight_quantization/weight_quantization_cost.h"

namespace weft::engine {
namespace {

class WeightQuantization : public Technique {
 public:
  explicit WeightQuantization(const TechniqueInputs& inputs)
      : model_(inputs.model), compute_(PrecisionOf(inputs.train.precision).products) {}

  // A stack is read as one matrix: it is quantised where all of it is frozen.
  Status OnParameters(ParameterSet& parameters) override {
    const FourBitFormat format = WeightFormatOf(model_);
    for (int64_t first = 0; first < parameters.size();) {
      int64_t end = first + 1;
      while (end < parameters.size() && parameters[end].stacked) ++end;
      bool whole = true;
      for (int64_t i = first; i < end; ++i) {
        const Parameter& weight = parameters[i];
        whole = whole && weight.frozen && weight.block_matrix();
      }
      for (; first < end; ++first) {
        if (whole) WEFT_RETURN_IF_ERROR(parameters.SetFourBit(first, format));
      }
    }
    dequantizer_ = std::make_unique<WeightDequantizer>(&parameters, compute_);
    return OkStatus();
  }

  std::string_view WhyNoGraphs() const override { return "weights are dequantised block by block"; }

 private:
  ModelSpec model_;
  DType compute_;
  std::unique_ptr<WeightDequantizer> dequantizer_;
};

}  // namespace

std::unique_ptr<Technique> NewWeightQuantization(const TechniqueInputs& inputs) {
  if (!QuantizesWeights(inputs.model)) return nullptr;
  return std::make_unique<WeightQuantization>(inputs);
}

}  // namespace weft::engine
