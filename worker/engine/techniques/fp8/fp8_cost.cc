#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "common/model/model_sizes.h"
#include "common/model/precision.h"
#include "common/model/technique_cost.h"
#include "common/spec/features.h"

namespace weft {
namespace {

using namespace features;

constexpr int64_t kF32 = 4;

// Delayed scaling keeps of the input and the result's gradient of the four layers of a block the
// largest magnitudes of the steps before, a scale, its inverse, the four floats at whose beginning
// products find that, what this step has seen, and the largest number of the format.
FormatBlocks BlocksOf(const TrainSpec& train) {
  const Fp8Spec& spec = train.fp8;
  constexpr int64_t kTensors = 2 * 4;
  const bool delayed = spec.scaling == "delayed";
  return {.dense_first = spec.bf16_first_blocks,
          .dense_last = spec.bf16_last_blocks,
          .state_bytes = delayed ? kTensors * kF32 * (spec.history + 8) : 0};
}

const ProductFormat kFp8Format = {
    .name = "FP8", .rate_name = "fp8", .compute_capability = "8.9", .blocks = BlocksOf};

// Products with the weights of blocks on scaled 8-bit operands (Micikevicius et al. 2022, arXiv
// 2209.05433), and bf16 for all else: embeddings, norms, attention, the classifier.
const PrecisionRecipe kFp8Precision = {.name = "fp8",
                                       .activations = DType::kBF16,
                                       .products = DType::kBF16,
                                       .classifier = DType::kBF16,
                                       .block_products = &kFp8Format};

const Feature kFp8 = {.name = "FP8",
                      .setting = "train.precision fp8",
                      .asked = [](const JobSpec& job) { return job.train.precision == "fp8"; },
                      .shown = [](const JobSpec&) { return std::string("train.precision fp8"); }};

const Refusal kFp8Refusals[] = {
    {&kFp8, &kZeroParameters, "FP8 operands are made of whole weights",
     "resources.zero_stage 2, or train.precision bf16"},
    {&kFp8, &kReplay, "scales would remember the passes of the check", "train.precision bf16"},
    {&kFp8, &kMeshDeterminism, "scales follow the tensors of a rank", "train.precision bf16"},
    {&kFp8, &kOffloadOptimizer,
     "operands would have to be made of weights as they come from the host",
     "train.precision bf16"},
    {&kFp8, &kTensorParallel2d, "scales would have to be found of parts along both sides",
     "resources.tensor_rows 1, or train.precision bf16"},
};

class Fp8Cost : public TechniqueCost {
 public:
  std::string_view name() const override { return "fp8"; }
  const Feature& feature() const override { return kFp8; }
  std::span<const Refusal> refusals() const override { return kFp8Refusals; }
  const PrecisionRecipe* precision() const override { return &kFp8Precision; }
  void ForgetPrecision(JobSpec& job) const override { job.train.fp8 = {}; }

  // Sizes that the products take, and blocks left for them.
  Status Check(const JobSpec& job) const override {
    const ModelSpec& model = job.model;
    const Fp8Spec& spec = job.train.fp8;
    if (!Asked(job)) {
      if (spec == Fp8Spec()) return OkStatus();
      return InvalidError("train.fp8 needs train.precision fp8, not " + job.train.precision +
                          "; hint: train.precision fp8, or leave train.fp8 out");
    }
    if (!model.import_path.empty()) return OkStatus();
    const std::array<std::pair<std::string_view, int64_t>, 4> sizes = {
        {{"model.width", model.width},
         {"the width of all heads together", QueryWidth(model)},
         {"the rows of queries, keys and values together, (model.heads + 2 x model.kv_heads) x "
          "head "
          "width,",
          QkvWidth(model)},
         {"the width of the MLP", MlpWidth(model)}}};
    const int64_t ranks = job.resources.tensor_parallel;
    const std::string parts =
        ranks > 1 ? " on each of resources.tensor_parallel " + std::to_string(ranks) + " ranks"
                  : "";
    for (const auto& [name, size] : sizes) {
      if (size % (kFp8Format.size_multiple * ranks) == 0) continue;
      return InvalidError("train.precision fp8 needs sizes that are multiples of 16" + parts +
                          ", and " + std::string(name) + " is " + std::to_string(size) +
                          "; hint: train.precision bf16");
    }
    const int64_t blocks = DistinctBlocks(model);
    if (spec.bf16_first_blocks + spec.bf16_last_blocks < blocks) return OkStatus();
    return InvalidError("train.fp8.bf16_first_blocks " + std::to_string(spec.bf16_first_blocks) +
                        " and bf16_last_blocks " + std::to_string(spec.bf16_last_blocks) +
                        " leave none of the " + std::to_string(blocks) +
                        " blocks to FP8; hint: train.precision bf16");
  }
};

}  // namespace

const TechniqueCost& Fp8TechniqueCost() {
  static const Fp8Cost cost;
  return cost;
}

}  // namespace weft
