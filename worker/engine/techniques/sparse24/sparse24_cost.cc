#include "worker/engine/techniques/sparse24/sparse24_cost.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/model/memory_model.h"
#include "common/model/model_sizes.h"
#include "common/model/technique_cost.h"
#include "common/spec/features.h"

namespace weft {

const TechniqueCost& OverParameterizationTechniqueCost();
const TechniqueCost& Fp8TechniqueCost();
const TechniqueCost& StochasticDepthTechniqueCost();

namespace {

using namespace features;

const Feature kSparse24 = {
    .name = "2:4 sparsity",
    .setting = "train.sparsity",
    .asked = [](const JobSpec& job) { return job.train.sparsity.method != "none"; },
    .shown = [](const JobSpec& job) { return "train.sparsity " + job.train.sparsity.method; }};

const Feature kSettings[] = {
    {.name = "2:4 estimates of gradients",
     .setting = "train.sparsity.gradient_estimate",
     .asked =
         [](const JobSpec& job) {
           const SparsitySpec& spec = job.train.sparsity;
           return HasSparseProducts(spec) && spec.gradient_estimate != "exact";
         },
     .shown =
         [](const JobSpec& job) {
           return "train.sparsity.gradient_estimate " + job.train.sparsity.gradient_estimate;
         }},
    {.name = "decay of sparse weights",
     .setting = "train.sparsity.method sr_ste",
     .asked = [](const JobSpec& job) { return job.train.sparsity.method == "sr_ste"; },
     .shown = [](const JobSpec&) { return std::string("train.sparsity.method sr_ste"); }},
    {.name = "2:4 soft thresholds",
     .setting = "train.sparsity.method s_ste",
     .asked = [](const JobSpec& job) { return job.train.sparsity.method == "s_ste"; },
     .shown = [](const JobSpec&) { return std::string("train.sparsity.method s_ste"); }}};
const Feature& kGradientEstimates = kSettings[0];
const Feature& kWeightDecay = kSettings[1];
const Feature& kSoftThreshold = kSettings[2];

constexpr std::string_view kDense = "train.sparsity.method none";
constexpr std::string_view kWholeWeights = "masks are searched in whole weights on the device";

const Refusal kSparse24Refusals[] = {
    {&kSparse24, &OverParameterizationTechniqueCost().feature(), kNotYet, kOneOfTwo},
    {&kSparse24, &Fp8TechniqueCost().feature(), kNotYet, "train.precision bf16"},
    {&kSparse24, &kZeroParameters, kWholeWeights, "resources.zero_stage 2"},
    {&kSparse24, &kOffloadOptimizer, kWholeWeights, "resources.offload_optimizer none"},
    {&kSparse24, &kTensorGrid, kNotYet, "resources.tensor_rows 1"},
    {&kSparse24, &kLocalSteps, "ranks would have other masks than each other", kDense},
    {&kSparse24, &kExperts, kNotYet, kDense},
    {&kSoftThreshold, &kTensorParallel, kNotYet, "data or pipeline parallelism"},
    // By sequence.
    {&kGradientEstimates, &StochasticDepthTechniqueCost().settings().front(),
     "estimates are drawn by position in the whole batch",
     "train.sparsity.gradient_estimate exact, or model.stochastic_depth.mode batch"},
    {&kGradientEstimates, &kContextParallel, kNotYet, "train.sparsity.gradient_estimate exact"},
    {&kWeightDecay, &kBf16Pure, "the decay is lost when weights are rounded to bf16",
     "train.precision bf16, or train.sparsity.method masked_decay"},
};

class Sparse24Cost : public TechniqueCost {
 public:
  std::string_view name() const override { return "sparse24"; }
  const Feature& feature() const override { return kSparse24; }
  std::span<const Feature> settings() const override { return kSettings; }
  std::span<const Refusal> refusals() const override { return kSparse24Refusals; }

  Status Check(const JobSpec& job) const override {
    const SparsitySpec& spec = job.train.sparsity;
    if (!Asked(job)) {
      if (spec == SparsitySpec()) return OkStatus();
      return InvalidError(
          "train.sparsity says how weights are sparse, and none is; hint: "
          "train.sparsity.method masked_decay");
    }
    const ModelSpec& model = job.model;
    if (!model.import_path.empty()) return OkStatus();
    const int64_t ranks = std::max<int64_t>(job.resources.tensor_parallel, 1);
    const std::string parts =
        ranks > 1 ? " on each of resources.tensor_parallel " + std::to_string(ranks) + " ranks"
                  : "";
    if (model.width % 4 != 0) {
      return InvalidError("train.sparsity needs a model.width that is a multiple of 4, not " +
                          std::to_string(model.width));
    }
    if (MlpWidth(model) % (4 * ranks) != 0) {
      return InvalidError("train.sparsity needs a width of the MLP that is a multiple of 4" +
                          parts + ", not " + std::to_string(MlpWidth(model)) +
                          "; hint: model.mlp_width");
    }
    return OkStatus();
  }

  // A bit of each weight says whether it counts. Both products with a weight have a list of the
  // columns that count: of each four weights two values in f32 and one column of two bytes, and
  // heads of the lists.
  MlpProducts ProductsOfMlps(const TrainSpec& train, bool /*on_cuda*/) const override {
    const SparsitySpec& spec = train.sparsity;
    if (spec.method == "none") return {};
    MlpProducts products{.state_bytes = 1.0 / 8};
    if (!HasSparseProducts(spec)) return products;
    constexpr double kHeads = 0.04;
    // Rows of blocks do not pair up where masks are of rows alone.
    const double columns = HasRowMasks(spec) ? 0.6 : 0.5;
    products.operand_bytes = 2 * (2 + columns + kHeads);
    products.dense_share = spec.method == "s_ste" ? 0 : spec.dense_share;
    products.copies_weights = spec.method == "s_ste";
    products.copies_gradients = spec.gradient_estimate != "exact";
    products.rate_name = kSparse24Rates;
    return products;
  }

  std::optional<JobSpec> WithoutProducts(const JobSpec& job) const override {
    const SparsitySpec& spec = job.train.sparsity;
    if (!HasSparseProducts(spec) || spec.require) return std::nullopt;
    JobSpec dense = job;
    dense.train.sparsity = {};
    return dense;
  }
  std::string_view InsteadOfSlowProducts() const override {
    return "train.sparsity.method none, or train.sparsity.require true to train sparse all the "
           "same";
  }

  std::optional<ExportedMask> ExportedMasks(const JobSpec& job, int64_t steps) const override {
    const bool soft = job.train.sparsity.method == "s_ste";
    if (!soft && steps >= FirstDenseStep(job.train)) return std::nullopt;
    ExportedMask mask{.bits = {kSparse24Masks, ""}};
    if (soft) mask.scale = StateName{kSparse24Scales, ""};
    return mask;
  }

  int64_t WorkspaceBytes(const MemoryInputs& inputs) const override {
    if (!inputs.mlp_products.copies_weights) return 0;
    constexpr int64_t kF32 = 4;
    const ModelSpec& model = inputs.shape.spec;
    return kF32 * MlpInputs(model) * model.width * MlpWidth(model) / inputs.shape.tensor;
  }

  std::vector<TechniqueMetric> Metrics() const override {
    return {
        {kFlipRateMetric,
         "Share of the weights of MLPs that the last search for 2:4 masks took in or left out."}};
  }
};

}  // namespace

int64_t FirstDenseStep(const TrainSpec& train) {
  if (train.sparsity.method == "s_ste") return train.steps;
  const double dense = train.sparsity.dense_share * static_cast<double>(train.steps);
  return HasSparseProducts(train.sparsity) ? train.steps - std::llround(dense) : 0;
}

const TechniqueCost& Sparse24TechniqueCost() {
  static const Sparse24Cost cost;
  return cost;
}

}  // namespace weft
