#include "worker/engine/techniques/sparse24/sparse24_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/model/memory_model.h"
#include "common/model/model_sizes.h"
#include "common/model/precision.h"
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
     .setting = "train.sparsity.method sr_ste or step",
     .asked = [](const JobSpec& job) { return DecaysWeights(job.train.sparsity); },
     .shown =
         [](const JobSpec& job) { return "train.sparsity.method " + job.train.sparsity.method; }},
    {.name = "adapters of sparse weights",
     .setting = "train.sparsity.adapter_rank",
     .asked = [](const JobSpec& job) { return job.train.sparsity.adapter_rank > 0; },
     .shown =
         [](const JobSpec& job) {
           return "train.sparsity.adapter_rank " + std::to_string(job.train.sparsity.adapter_rank);
         }},
    {.name = "sparse training with second moments that are kept",
     .setting = "train.sparsity.method step",
     .asked = [](const JobSpec& job) { return job.train.sparsity.method == "step"; },
     .shown = [](const JobSpec&) { return std::string("train.sparsity.method step"); }},
    {.name = "2:4 sparsity of activations",
     .setting = "train.sparsity.method activations",
     .asked = [](const JobSpec& job) { return PrunesActivations(job.train.sparsity); },
     .shown = [](const JobSpec&) { return std::string("train.sparsity.method activations"); }}};
const Feature& kGradientEstimates = kSettings[0];
const Feature& kWeightDecay = kSettings[1];
const Feature& kLazyAdapters = kSettings[2];
const Feature& kKeptMoments = kSettings[3];
const Feature& kPrunedActivations = kSettings[4];

constexpr std::string_view kDense = "train.sparsity.method none";
constexpr std::string_view kWait = "adapters stay as they are until their steps begin";

const Refusal kSparse24Refusals[] = {
    {&kSparse24, &OverParameterizationTechniqueCost().feature(),
     "masks would have to be those of weights that are made of factors", kOneOfTwo},
    {&kSparse24, &Fp8TechniqueCost().feature(), kOneProducts, "train.precision bf16"},
    {&kSparse24, &kOffloadParameters, "weights would have to come packed under their masks",
     "resources.offload_parameters none"},
    {&kSparse24, &kDelayedUpdate, "masks would be searched in weights that are being updated",
     "resources.delayed_update false"},
    {&kSparse24, &kTensorParallel2d, "masks would have to be searched in the parts of a grid",
     "resources.tensor_rows 1"},
    {&kSparse24, &kReplay, kPlainPasses, kOneOfTwo},
    {&kSparse24, &kMeshDeterminism, kOtherBits, kOneOfTwo},
    {&kSparse24, &kLocalSteps, "ranks would have other masks than each other", kDense},
    {&kSparse24, &kExperts, kDenseLayersAlone, kDense},
    // By sequence.
    {&kGradientEstimates, &StochasticDepthTechniqueCost().settings().front(),
     "estimates are drawn by position in the whole batch",
     "train.sparsity.gradient_estimate exact, or model.stochastic_depth.mode batch"},
    {&kLazyAdapters, &kOffloadOptimizer, kWait, "resources.offload_optimizer none"},
    {&kLazyAdapters, &kWholeTensorOptimizer, kWait, "optimizer.name adamw"},
    {&kLazyAdapters, &kScheduleFree, kWait, "optimizer.name adamw"},
    {&kLazyAdapters, &kPhases, "adapters would have to grow with their weights", kOneOfTwo},
    {&kLazyAdapters, &kFreeze, "adapters of frozen weights would have to be frozen, too",
     kOneOfTwo},
    {&kWeightDecay, &kBf16Pure, "the decay is lost when weights are rounded to bf16",
     "train.precision bf16, or train.sparsity.method masked_decay"},
    {&kKeptMoments, &kNoAdamMoments, "the method keeps the second moments of Adam",
     "optimizer.name adamw"},
    {&kPrunedActivations, &kOtherThanSquaredRelu, "only what a squared ReLU makes is mostly zero",
     "model.activation squared_relu"},
};

Status CheckDecaySearch(const TrainSpec& train) {
  const SparsitySpec& spec = train.sparsity;
  const int64_t steps = spec.decay_search_steps;
  if (steps == 0) return OkStatus();
  if (spec.method != "masked_decay" && spec.method != "sr_ste") {
    return InvalidError(
        "train.sparsity.decay_search_steps is of methods with a decay from the "
        "first step on, not of " +
        spec.method + "; hint: train.sparsity.method masked_decay");
  }
  const int64_t interval = spec.mask_interval;
  if (steps % interval != 0 || steps < 2 * interval) {
    return InvalidError(
        "train.sparsity.decay_search_steps " + std::to_string(steps) +
        " must be a multiple of train.sparsity.mask_interval " + std::to_string(interval) +
        ", and at least twice as many; hint: " +
        std::to_string(std::max((steps + interval - 1) / interval, int64_t{2}) * interval));
  }
  const int64_t sparse_end = std::min(FirstDenseStep(train), train.steps);
  if (sparse_end >= DecaySearchSteps(spec) + steps) return OkStatus();
  return InvalidError("train.steps " + std::to_string(train.steps) +
                      " leaves the training fewer sparse steps than a run of the search for the "
                      "decay, train.sparsity.decay_search_steps " +
                      std::to_string(steps) + ", after " + std::to_string(kDecaySearchRuns) +
                      " of them; hint: more train.steps, or a decay");
}

Status CheckSwitch(const SparsitySpec& spec) {
  if (spec.method == "step" || PrunesActivations(spec) ||
      spec.switch_share == SparsitySpec().switch_share) {
    return OkStatus();
  }
  return InvalidError(
      "train.sparsity.switch_share is of train.sparsity.method step and activations, not of " +
      spec.method);
}

Status CheckAdapters(const JobSpec& job) {
  const SparsitySpec& spec = job.train.sparsity;
  if (spec.adapter_rank == 0) {
    if (spec.adapter_share == SparsitySpec().adapter_share) return OkStatus();
    return InvalidError(
        "train.sparsity.adapter_share is of adapters, and there are none; hint: "
        "train.sparsity.adapter_rank");
  }
  if (spec.method != "slope") {
    return InvalidError("train.sparsity.adapter_rank is of train.sparsity.method slope, not of " +
                        spec.method);
  }
  if (FirstAdapterStep(job.train) < job.train.steps) return OkStatus();
  return InvalidError("train.sparsity.adapter_share leaves adapters none of train.steps " +
                      std::to_string(job.train.steps) + "; hint: a larger share");
}

/// Share of the steps whose products are dense, as far as it is known before.
double DenseShare(const TrainSpec& train) {
  const SparsitySpec& spec = train.sparsity;
  const bool has_tail = FirstDenseStep(train) < train.steps;
  if (!has_tail && spec.method != "step" && spec.decay_search_steps == 0) return 0;
  if (spec.method == "step") {
    const double before = spec.switch_share > 0 ? spec.switch_share : kLastSwitchShare;
    return std::min(spec.dense_share + before, 1.0);
  }
  if (spec.decay_search_steps == 0) return spec.dense_share;
  const int64_t tail = has_tail ? train.steps - FirstDenseStep(train) : 0;
  const int64_t dense = tail + spec.decay_search_steps;
  return static_cast<double>(dense) / static_cast<double>(train.steps);
}

/// Bytes that a CUDA device reads and writes for each weight to pack it, which it has in the type
/// of products. Both compressed copies together are as large as the weight. Where masks are of rows
/// alone there is a dense one instead of the second, made in a pass of its own.
double PackedOnCudaBytes(const TrainSpec& train) {
  constexpr double kBothWays = 2, kRowsAlone = 1.5 + 2;
  const SparsitySpec& spec = train.sparsity;
  const DType products = PrecisionOf(train.precision).products;
  // There are no sparse products in f32: one dense copy, whatever the mask.
  const bool rows_alone = HasRowMasks(spec) && products != DType::kF32;
  const double copies = (rows_alone ? kRowsAlone : kBothWays) + (HasBackwardMasks(spec) ? 2 : 0);
  return copies * static_cast<double>(DTypeSize(products));
}

/// Sets what searching masks, listing the columns that they keep and taking the values takes. All
/// is estimated from how the kernels go through the weights, except for the search, which
/// docs/benchmarks/sparse24.md and docs/benchmarks/gpu/h200.md have measured. Estimates of
/// gradients are in the measured products.
void SetWorkOnWeights(const TrainSpec& train, bool on_cuda, TechniqueProducts& products) {
  const SparsitySpec& spec = train.sparsity;
  const int64_t interval = StepsOfMasks(spec);
  const double searches = interval > 0 ? 1 / static_cast<double>(interval) : 0;
  const auto held = static_cast<double>(DTypeSize(PrecisionOf(train.precision).matrices));
  // A weight takes half a nanosecond of two threads that multiply 200 GFLOPs a second; a CUDA
  // device reads it at half of the memory's rate.
  constexpr double kFlopsOfSearch = 100, kReadsOfSearch = 2;
  if (on_cuda) {
    products.searched_bytes = searches * kReadsOfSearch * held;
  } else {
    products.searched_flops = searches * kFlopsOfSearch;
  }
  if (!HasSparseProducts(spec)) return;
  // An f32 copy of what is soft.
  const double soft = HasSoftThresholds(spec) ? held + 4 : 0;
  if (on_cuda) {
    products.gathered_bytes = products.packed_bytes = PackedOnCudaBytes(train) + soft;
    return;
  }
  // Both lists go through the columns of four weights twice, in some 30 instructions each time, and
  // take a value of every weight.
  constexpr double kFlopsOfLists = 300, kFlopsOfValues = 100;
  const double masks = HasBackwardMasks(spec) ? 2 : 1;
  products.gathered_flops = masks * (kFlopsOfLists + kFlopsOfValues);
  products.packed_flops = masks * (searches * kFlopsOfLists + kFlopsOfValues);
  products.gathered_bytes = products.packed_bytes = soft;
}

/// TechniqueProducts::brought_bytes: the weights that are searched, as they are held, and on a CUDA
/// device those that are packed in a larger type than that of products.
double BroughtBytes(const TrainSpec& train, double dense_share, bool on_cuda) {
  const SparsitySpec& spec = train.sparsity;
  const PrecisionRecipe& precision = PrecisionOf(train.precision);
  const auto held = static_cast<double>(DTypeSize(precision.matrices));
  const auto read = static_cast<double>(DTypeSize(precision.products));
  const int64_t interval = StepsOfMasks(spec);
  const double searched = interval > 0 ? held / static_cast<double>(interval) : 0;
  const bool rounded = !HasSoftThresholds(spec) && precision.products == DType::kBF16;
  if (!on_cuda || rounded) return searched;
  return searched + (1 - dense_share) * (held - read);
}

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
    WEFT_RETURN_IF_ERROR(CheckDecaySearch(job.train));
    WEFT_RETURN_IF_ERROR(CheckSwitch(spec));
    WEFT_RETURN_IF_ERROR(CheckAdapters(job));
    const ModelSpec& model = job.model;
    const bool imported = !model.import_path.empty();
    if (!imported || job.train.sequence_length > 0) {
      WEFT_RETURN_IF_ERROR(CheckTokenGroups(job, job.resources.context_parallel));
    }
    if (imported) return OkStatus();
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
  TechniqueProducts ProductsOf(const TrainSpec& train, ComputeUnits units) const override {
    const SparsitySpec& spec = train.sparsity;
    const bool on_cuda = units == ComputeUnits::kCuda;
    if (spec.method == "none" || PrunesActivations(spec)) return {};
    TechniqueProducts products{
        .state_bytes = 1.0 / 8, .uploads_at_once = true, .brings_weights = true};
    products.dense_share = HasSparseProducts(spec) ? DenseShare(train) : 1;
    products.brought_bytes = BroughtBytes(train, products.dense_share, on_cuda);
    SetWorkOnWeights(train, on_cuda, products);
    if (!HasSparseProducts(spec)) return products;
    constexpr double kHeads = 0.04;
    // Rows of blocks do not pair up where masks are of rows alone.
    const double columns = HasRowMasks(spec) ? 0.6 : 0.5;
    products.operand_bytes = 2 * (2 + columns + kHeads);
    if (HasBackwardMasks(spec)) {
      // Other lists, of the share of the columns' fours that two kept of them leave.
      products.state_bytes *= 2;
      products.operand_bytes += 2 * (1.625 + 0.5 + kHeads);
    }
    products.dense_weight_gradients = spec.gradient_estimate == "exact";
    // Sparse tensor cores need two of each four along the side that they sum over. On a CPU the
    // kept weights of any mask are listed.
    products.dense_input_gradients = on_cuda && HasRowMasks(spec) && !HasBackwardMasks(spec);
    products.copies_weights = HasSoftThresholds(spec);
    products.fuses_gates = products.dense_share == 0 && spec.adapter_rank == 0;
    // Sparse tensor cores do not multiply f32, so that the estimate is stored.
    products.copies_gradients =
        spec.gradient_estimate != "exact" && on_cuda && train.precision == "fp32";
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
    const SparsitySpec& spec = job.train.sparsity;
    if (!HasSparseProducts(spec)) return std::nullopt;
    // The dense run of the search for the decay.
    if (spec.decay_search_steps > 0 && steps <= spec.decay_search_steps) return std::nullopt;
    // Before there are masks, as in the first part of step, those of the checkpoint keep all.
    const bool soft = HasSoftThresholds(spec);
    if (!soft && steps >= FirstDenseStep(job.train)) return std::nullopt;
    ExportedMask mask{.bits = {kSparse24Masks, ""}};
    if (soft) mask.scale = StateName{kSparse24Scales, ""};
    return mask;
  }

  // Searches for masks are of weights as they are held. One that comes once is before the first
  // pass, when there are no packed weights yet.
  double TrainedPasses(const ModelSpec&, const TrainSpec& train) const override {
    const SparsitySpec& spec = train.sparsity;
    if (spec.method == "none" || PrunesActivations(spec)) return 0;
    const int64_t interval = StepsOfMasks(spec);
    return interval > 0 ? 1 / static_cast<double>(interval) : 0;
  }

  bool GathersAsHeld(const TrainSpec& train, const ParameterInfo& weight) const override {
    return HasSoftThresholds(train.sparsity) && CanBeSparse24(weight);
  }

  std::vector<TechniqueMetric> Metrics() const override {
    return {
        {kFlipRateMetric,
         "Share of the weights of MLPs that the last search for 2:4 masks took in or left out."},
        {kDecayMetric, "Decay of what 2:4 masks leave out, where it is searched for."}};
  }

  // The search for the decay begins each of its runs with the same weights.
  int64_t StateBytes(const JobSpec& job, const ParameterInfo& parameter) const override {
    return job.train.sparsity.decay_search_steps > 0 ? 4 * parameter.Elements() : 0;
  }

  // Adapters belong to the training, not to the network.
  std::vector<ParameterInfo> AuxiliaryParametersOf(const TrainSpec& train,
                                                   const ParameterInfo& weight) const override {
    return LazyAdaptersOf(train.sparsity, weight);
  }
};

}  // namespace

int64_t FirstDenseStep(const TrainSpec& train) {
  const SparsitySpec& spec = train.sparsity;
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  if (PrunesActivations(spec)) return kNever;
  if (!HasSparseProducts(spec)) return 0;
  if (HasSoftThresholds(spec) || spec.method == "slope") return kNever;
  const int64_t steps = train.steps - DecaySearchSteps(spec);
  const int64_t dense = std::llround(spec.dense_share * static_cast<double>(steps));
  return dense > 0 ? train.steps - dense : kNever;
}

// Each rank has two chunks of a sequence. Sequences that have no equal chunks are refused whatever
// the gradients are.
Status CheckTokenGroups(const JobSpec& job, int64_t degree) {
  const int64_t length = SequenceLength(job), chunks = 2 * degree, groups = 4 * chunks;
  if (degree <= 1 || !kGradientEstimates.asked(job) || length % chunks != 0 ||
      length % groups == 0) {
    return OkStatus();
  }
  return InvalidError("train.sparsity.gradient_estimate " + job.train.sparsity.gradient_estimate +
                      " keeps two of four tokens, and the chunks of " + std::to_string(degree) +
                      " context-parallel ranks cut such fours: sequences have " +
                      std::to_string(length) + " tokens, not a multiple of " +
                      std::to_string(groups) + "; hint: train.sequence_length " +
                      std::to_string(std::max(length / groups, int64_t{1}) * groups) +
                      ", or gradient_estimate exact");
}

int64_t FirstAdapterStep(const TrainSpec& train) {
  const SparsitySpec& spec = train.sparsity;
  if (spec.adapter_rank == 0) return train.steps;
  return train.steps - std::llround(spec.adapter_share * static_cast<double>(train.steps));
}

std::vector<ParameterInfo> LazyAdaptersOf(const SparsitySpec& spec, const ParameterInfo& weight) {
  if (spec.adapter_rank == 0 || !CanBeSparse24(weight) || !weight.matrix()) return {};
  std::vector<ParameterInfo> adapters;
  const auto add = [&](const char* name, std::vector<int64_t> shape, AdapterSide side) {
    ParameterInfo& adapter = adapters.emplace_back(weight);
    adapter.name = weight.name + name;
    adapter.shape = std::move(shape);
    adapter.product_rows = adapter.shape[0];
    adapter.stacked = false;
    adapter.parts.clear();
    adapter.adapter = side;
  };
  add(".adapter_in", {spec.adapter_rank, weight.shape[1]}, AdapterSide::kInput);
  add(".adapter_out", {weight.shape[0], spec.adapter_rank}, AdapterSide::kOutput);
  return adapters;
}

const TechniqueCost& Sparse24TechniqueCost() {
  static const Sparse24Cost cost;
  return cost;
}

}  // namespace weft
