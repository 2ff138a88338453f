#include "worker/engine/techniques/structured_matrices/structured_matrices_cost.h"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "common/glob.h"
#include "common/model/model_sizes.h"
#include "common/model/technique_cost.h"
#include "common/spec/features.h"
#include "common/spec/spec_json.h"

namespace weft {

const TechniqueCost& OverParameterizationTechniqueCost();
const TechniqueCost& Sparse24TechniqueCost();

namespace {

using namespace features;

bool Asks(const ModelSpec& model) {
  return model.structured_matrices.kind != "none";
}

/// The names of the structured weights of block `index`, without that number.
std::vector<std::string> StructuredNames(const ModelSpec& model, int64_t index) {
  const std::string number = "." + std::to_string(index) + ".";
  std::vector<std::string> names;
  for (const ParameterInfo& parameter : PlainBlockParameters(model, index)) {
    if (!IsStructured(model, parameter)) continue;
    std::string name = parameter.name;
    const size_t at = name.find(number);
    names.push_back(at == std::string::npos ? std::move(name) : name.erase(at, number.size()));
  }
  return names;
}

bool BlocksDiffer(const ModelSpec& model) {
  if (!Asks(model) || model.structured_matrices.layers.empty()) return false;
  const std::vector<std::string> first = StructuredNames(model, 0);
  for (int64_t block = 1; block < DistinctBlocks(model); ++block) {
    if (StructuredNames(model, block) != first) return true;
  }
  return false;
}

const Feature kStructuredMatrices = {.name = "structured matrices",
                                     .setting = "model.structured_matrices",
                                     .asked = [](const JobSpec& job) { return Asks(job.model); },
                                     .shown =
                                         [](const JobSpec& job) {
                                           return "model.structured_matrices " +
                                                  job.model.structured_matrices.kind;
                                         }};

const Feature kSettings[] = {
    {.name = "structured matrices in some blocks",
     .setting = "model.structured_matrices.layers that name some blocks",
     .asked = [](const JobSpec& job) { return BlocksDiffer(job.model); },
     .shown = [](const JobSpec&) { return std::string("model.structured_matrices.layers"); }}};
const Feature& kInSomeBlocks = kSettings[0];

Status CheckPatterns(const ModelSpec& model) {
  std::vector<std::string> names;
  for (int64_t block = 0; block < DistinctBlocks(model); ++block) {
    for (ParameterInfo& parameter : PlainBlockParameters(model, block)) {
      if (parameter.block_matrix()) names.push_back(std::move(parameter.name));
    }
  }
  for (const std::string& pattern : model.structured_matrices.layers) {
    const auto matches = [&](const std::string& name) { return GlobMatches(pattern, name); };
    if (std::any_of(names.begin(), names.end(), matches)) continue;
    const std::string nearest = NearestName(pattern, names);
    return InvalidError(
        "model.structured_matrices.layers '" + pattern + "' matches no matrix of a block; hint: " +
        (nearest.empty() ? "names are like " + names.front() : "did you mean '" + nearest + "'?"));
  }
  return OkStatus();
}

Status CheckSizes(const ModelSpec& model) {
  const int64_t blocks = model.structured_matrices.blocks;
  for (int64_t block = 0; block < DistinctBlocks(model); ++block) {
    for (const ParameterInfo& weight : PlainBlockParameters(model, block)) {
      if (!IsStructured(model, weight)) continue;
      const auto [smaller, larger] = std::minmax(weight.shape[0], weight.shape[1]);
      if (smaller % (blocks * blocks) == 0 && larger % blocks == 0) continue;
      return InvalidError(
          "model.structured_matrices.blocks " + std::to_string(blocks) + " does not fit " +
          weight.name + " [" + std::to_string(weight.shape[0]) + ", " +
          std::to_string(weight.shape[1]) +
          "]: its square must divide the smaller side, and it the larger one; hint: 2 or 4, or "
          "sizes of the model that are multiples");
    }
  }
  return OkStatus();
}

std::vector<Refusal> Rows() {
  std::vector<Refusal> rows = {
      {&kStructuredMatrices, &kTensorParallel, kNotYet, "data or pipeline parallelism"},
      {&kStructuredMatrices, &kExperts, kNotYet, kOneOfTwo},
      {&kStructuredMatrices, &kOffloadOptimizer, kNotYet, "resources.offload_optimizer none"},
      {&kStructuredMatrices, &OverParameterizationTechniqueCost().feature(),
       "one makes a weight of more numbers, the other of fewer", kOneOfTwo},
      {&kStructuredMatrices, &Sparse24TechniqueCost().feature(), kNotYet, kOneOfTwo},
  };
  // Formats of products that are techniques themselves.
  for (const TechniqueCost* technique : TechniqueCosts()) {
    if (technique->precision() == nullptr) continue;
    rows.push_back({&kStructuredMatrices, &technique->feature(), kNotYet, "train.precision bf16"});
  }
  rows.push_back({&kInSomeBlocks, &kPipelineParallel, "all stages have equal blocks",
                  "patterns that name the same weights of all blocks"});
  return rows;
}

class StructuredMatricesCost : public TechniqueCost {
 public:
  std::string_view name() const override { return "structured_matrices"; }
  const Feature& feature() const override { return kStructuredMatrices; }
  std::span<const Feature> settings() const override { return kSettings; }

  std::span<const Refusal> refusals() const override {
    static const std::vector<Refusal> rows = Rows();
    return rows;
  }

  Status Check(const JobSpec& job) const override {
    const StructuredMatricesSpec& spec = job.model.structured_matrices;
    const StructuredMatricesSpec unset;
    if (spec.kind == "none") {
      if (spec.layers.empty() && spec.blocks == unset.blocks) return OkStatus();
      return InvalidError(
          "model.structured_matrices has settings and no kind; hint: "
          "model.structured_matrices.kind monarch");
    }
    if (!job.model.import_path.empty()) return OkStatus();  // its sizes are not known yet
    WEFT_RETURN_IF_ERROR(CheckPatterns(job.model));
    return CheckSizes(job.model);
  }

  std::vector<ParameterInfo> ReplacementsOf(const ModelSpec& model,
                                            const ParameterInfo& weight) const override {
    if (!IsStructured(model, weight)) return {};
    return StructuredTensors(model.structured_matrices, weight);
  }

  // Two tensors between the factors at a time, and in the backward pass the gradient of one more.
  ProductNumbers WorkspaceOfProducts(const ModelSpec& model, SubLayer sub_layer) const override {
    if (!Asks(model)) return {};
    ProductNumbers most;
    for (int64_t block = 0; block < DistinctBlocks(model); ++block) {
      int64_t largest = 0, all = 0;
      for (const ParameterInfo& weight : PlainBlockParameters(model, block)) {
        const bool here =
            sub_layer == SubLayer::kMlp ? IsMlp(weight.role) : IsAttention(weight.role);
        if (!here || !IsStructured(model, weight)) continue;
        const int64_t middle = MonarchOf(model.structured_matrices, weight.shape).Middle();
        largest = std::max(largest, middle);
        all += middle;
      }
      most.forward = std::max(most.forward, 2 * largest);
      most.backward = std::max(most.backward, 3 * largest);
      most.deferred = std::max(most.deferred, all);
      if (!BlocksDiffer(model)) break;
    }
    return most;
  }

  bool TellsBlocksApart(const ModelSpec& model) const override { return BlocksDiffer(model); }
};

}  // namespace

const TechniqueCost& StructuredMatricesTechniqueCost() {
  static const StructuredMatricesCost cost;
  return cost;
}

MonarchSizes MonarchOf(const StructuredMatricesSpec& spec, const std::vector<int64_t>& shape) {
  return {.blocks = spec.blocks,
          .in = shape[1] / spec.blocks,
          .out = shape[0] / spec.blocks,
          .rank = std::min(shape[0], shape[1]) / (spec.blocks * spec.blocks)};
}

bool IsStructured(const ModelSpec& model, const ParameterInfo& weight) {
  const StructuredMatricesSpec& spec = model.structured_matrices;
  if (spec.kind == "none" || !weight.block_matrix()) return false;
  if (spec.layers.empty()) return IsMlp(weight.role);
  return std::any_of(spec.layers.begin(), spec.layers.end(),
                     [&](const std::string& pattern) { return GlobMatches(pattern, weight.name); });
}

std::vector<ParameterInfo> StructuredTensors(const StructuredMatricesSpec& spec,
                                             const ParameterInfo& weight) {
  const MonarchSizes size = MonarchOf(spec, weight.shape);
  const auto factor = [&](const std::string& name, int64_t rows, int64_t columns) {
    ParameterInfo info = weight;
    info.name += "." + name;
    info.shape = {size.blocks * rows, columns};
    info.parts.assign(static_cast<size_t>(size.blocks), rows);
    info.products = size.blocks;
    return info;
  };
  std::vector<ParameterInfo> factors = {
      factor("monarch_first", size.blocks * size.rank, size.in),
      factor("monarch_second", size.out, size.blocks * size.rank)};
  factors[0].multiplied_again = true;
  return factors;
}

}  // namespace weft
