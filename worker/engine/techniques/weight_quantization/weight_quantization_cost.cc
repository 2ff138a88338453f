#include "worker/engine/techniques/weight_quantization/weight_quantization_cost.h"

#include <bit>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "common/model/model_sizes.h"
#include "common/model/technique_cost.h"
#include "common/spec/features.h"

namespace weft {

const TechniqueCost& OverParameterizationTechniqueCost();
const TechniqueCost& Sparse24TechniqueCost();
const TechniqueCost& StructuredMatricesTechniqueCost();
const TechniqueCost& StructuredPruningTechniqueCost();
const TechniqueCost& PruningTechniqueCost();

namespace {

using namespace features;

const Feature kWeightQuantization = {
    .name = "quantised weights",
    .setting = "model.weight_quantization",
    .asked = [](const JobSpec& job) { return QuantizesWeights(job.model); },
    .shown =
        [](const JobSpec& job) {
          return "model.weight_quantization " + job.model.weight_quantization.type;
        }};

const Feature kSettings[] = {
    {.name = "quantised weights whose results are computed again",
     .setting = "model.weight_quantization with model.peft.use_dora or method ia3",
     .asked =
         [](const JobSpec& job) {
           const PeftSpec& peft = job.model.peft;
           return QuantizesWeights(job.model) && (peft.use_dora || peft.method == "ia3");
         },
     .shown =
         [](const JobSpec& job) {
           return kWeightQuantization.shown(job) + " with model.peft." +
                  (job.model.peft.use_dora ? "use_dora" : "method ia3");
         }}};
const Feature& kResultsAgain = kSettings[0];

/// FourBitFormat::block_size
constexpr int64_t kSmallestBlock = 32;

constexpr std::string_view kFrozenWords =
    "quantised weights are frozen, and the other technique changes them";

std::vector<Refusal> Rows() {
  std::vector<Refusal> rows = {
      {&kWeightQuantization, &kTensorParallel2d, "a row of a part of a weight would cut blocks",
       "resources.tensor_rows 1"},
      {&kWeightQuantization, &kParametersInFile,
       "words would have to come from files in place of numbers",
       "resources.offload_parameters host"},
      {&kWeightQuantization, &kRecomputeSegments, "one block at a time is dequantised",
       "resources.recompute block or auto, recompute_segment 1"},
      {&kWeightQuantization, &OverParameterizationTechniqueCost().feature(), kFrozenWords,
       kOneOfTwo},
      {&kWeightQuantization, &Sparse24TechniqueCost().feature(), kFrozenWords, kOneOfTwo},
      {&kWeightQuantization, &StructuredMatricesTechniqueCost().feature(),
       "structured matrices are in the place of the weights", kOneOfTwo},
      {&kWeightQuantization, &StructuredPruningTechniqueCost().feature(), kFrozenWords, kOneOfTwo},
      {&kWeightQuantization, &PruningTechniqueCost().feature(), kFrozenWords, kOneOfTwo},
      {&kWeightQuantization, &kReadFrozenWeights,
       "the technique computes with the values of frozen weights, as loha, lokr, oft and vera do",
       "model.peft.method lora"},
  };
  for (const TechniqueCost* technique : TechniqueCosts()) {
    if (technique->precision() == nullptr) continue;
    rows.push_back({&kWeightQuantization, &technique->feature(),
                    "operands would have to be made of blocks that are dequantised",
                    "train.precision bf16"});
  }
  rows.push_back({&kResultsAgain, &kZeroBubble,
                  "when deferred gradients need them, other weights have been dequantised",
                  "resources.pipeline_schedule 1f1b"});
  return rows;
}

class WeightQuantizationCost : public TechniqueCost {
 public:
  std::string_view name() const override { return "weight_quantization"; }
  const Feature& feature() const override { return kWeightQuantization; }
  std::span<const Feature> settings() const override { return kSettings; }

  std::span<const Refusal> refusals() const override {
    static const std::vector<Refusal> rows = Rows();
    return rows;
  }

  Status Check(const JobSpec& job) const override {
    const WeightQuantizationSpec& spec = job.model.weight_quantization;
    if (!QuantizesWeights(job.model)) {
      if (spec == WeightQuantizationSpec()) return OkStatus();
      return InvalidError(
          "model.weight_quantization has settings and no type; hint: "
          "model.weight_quantization.type nf4");
    }
    if (!std::has_single_bit(static_cast<uint64_t>(spec.block_size))) {
      return InvalidError("model.weight_quantization.block_size " +
                          std::to_string(spec.block_size) +
                          " is not a power of two; hint: 64 or 128");
    }
    if (!weft::FreezesAny(job.model)) {
      return InvalidError(
          "model.weight_quantization quantises frozen weights, and nothing is frozen; "
          "hint: model.peft.method lora");
    }
    return OkStatus();
  }

  void TrainWhole(ModelSpec& model) const override { model.weight_quantization = {}; }

  std::optional<SmallerWeights> WithSmallerWeights(const ModelSpec& model) const override {
    if (QuantizesWeights(model) || !weft::FreezesAny(model)) return std::nullopt;
    SmallerWeights smaller{"frozen weights in 4 bits", "model.weight_quantization.type nf4",
                           "model: { weight_quantization: { type: nf4 } }", model};
    smaller.model.weight_quantization.type = "nf4";
    return smaller;
  }

  Status CheckTensorParallel(const ModelSpec& model, int64_t columns) const override {
    if (!QuantizesWeights(model)) return OkStatus();
    const int64_t block_size = model.weight_quantization.block_size;
    const int64_t heads = QueryWidth(model) / columns, inner = MlpWidth(model) / columns;
    const int64_t common = std::gcd(std::gcd(model.width, heads), inner);
    if (common % block_size == 0) return OkStatus();
    const int64_t largest = common & -common;  // power of two
    return InvalidError("model.weight_quantization.block_size " + std::to_string(block_size) +
                        " would cut blocks: with resources.tensor_parallel " +
                        std::to_string(columns) + " products have " + std::to_string(model.width) +
                        ", " + std::to_string(heads) + " and " + std::to_string(inner) +
                        " inputs (the width, a rank's heads, its part of the MLP); hint: " +
                        (largest >= kSmallestBlock ? "block_size " + std::to_string(largest)
                                                   : "a smaller resources.tensor_parallel"));
  }

  int64_t QuantizedWordsOf(const ModelSpec& model, const ParameterInfo& weight,
                           int64_t whole) const override {
    if (!QuantizesWeights(model) || !weight.frozen || !weight.block_matrix()) return 0;
    const FourBitFormat format = WeightFormatOf(model);
    const int64_t elements = weight.Elements();
    if (elements == whole) return FourBitLayout(format, elements).words;
    return FourBitLayout(format, elements, {.of = whole / format.block_size}).words;
  }
};

}  // namespace

const TechniqueCost& WeightQuantizationTechniqueCost() {
  static const WeightQuantizationCost cost;
  return cost;
}

FourBitFormat WeightFormatOf(const ModelSpec& model) {
  const WeightQuantizationSpec& spec = model.weight_quantization;
  return {.type = spec.type == "fp4" ? FourBitFormat::Type::kFp4 : FourBitFormat::Type::kNf4,
          .block_size = spec.block_size,
          .double_quantization = spec.double_quantization};
}

}  // namespace weft
