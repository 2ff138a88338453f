#include "worker/engine/techniques/sub_networks/sub_networks_cost.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/model/model_sizes.h"
#include "common/model/precision.h"
#include "common/model/technique_cost.h"
#include "common/spec/features.h"
#include "common/spec/local_steps.h"

namespace weft {

// Techniques before this one in the registry.
const TechniqueCost& Fp8TechniqueCost();
const TechniqueCost& PeftTechniqueCost();
const TechniqueCost& StructuralGrowthTechniqueCost();
const TechniqueCost& StructuredMatricesTechniqueCost();
const TechniqueCost& WeightQuantizationTechniqueCost();

namespace {

using namespace features;

const Feature kSubNetworks = {
    .name = "sub-networks of ranks",
    .setting = "train.local_sub_networks",
    .asked = [](const JobSpec& job) { return job.train.local_sub_networks; },
    .shown = [](const JobSpec&) { return std::string("train.local_sub_networks"); }};

constexpr std::string_view kPlainProducts = "products of some of the units are dense ones";

std::span<const Refusal> Rows() {
  static const Refusal rows[] = {
      {&kSubNetworks, &kTensorParallel, "each rank trains a part of the whole network by itself",
       "data parallelism alone"},
      {&kSubNetworks, &kPipelineParallel, "each rank trains a part of the whole network by itself",
       "data parallelism alone"},
      {&kSubNetworks, &kContextParallel, "each rank trains a part of the whole network by itself",
       "data parallelism alone"},
      {&kSubNetworks, &kTimedRounds, "parts are drawn for rounds of counted steps",
       "train.local_steps in place of local_round_seconds"},
      {&kSubNetworks, &kOffloadOptimizer, kOnDeviceAlone, kOneOfTwo},
      {&kSubNetworks, &kWholeTensorOptimizer,
       "the optimizer looks at whole matrices, and a rank trains a part of them",
       "optimizer.name adamw"},
      {&kSubNetworks, &kExperts, kDenseLayersAlone, kOneOfTwo},
      {&kSubNetworks, &Fp8TechniqueCost().feature(), kPlainProducts, "train.precision bf16"},
      {&kSubNetworks, &StructuredMatricesTechniqueCost().feature(), kPlainProducts, kOneOfTwo},
      {&kSubNetworks, &PeftTechniqueCost().feature(), kPlainProducts, kOneOfTwo},
      {&kSubNetworks, &WeightQuantizationTechniqueCost().feature(), kPlainProducts, kOneOfTwo},
      {&kSubNetworks, &StructuralGrowthTechniqueCost().feature(), "masked products have all units",
       kOneOfTwo},
  };
  return rows;
}

class SubNetworksCost : public TechniqueCost {
 public:
  std::string_view name() const override { return "sub_networks"; }
  const Feature& feature() const override { return kSubNetworks; }
  std::span<const Refusal> refusals() const override { return Rows(); }

  Status Check(const JobSpec& job) const override {
    if (!Asked(job)) return OkStatus();
    if (!MakesLocalSteps(job.train)) {
      return InvalidError(
          "train.local_sub_networks is of ranks that make steps by themselves; hint: "
          "train.local_steps 32");
    }
    // The sizes of an imported network are not known yet.
    if (!job.model.import_path.empty()) return OkStatus();
    return CheckSubNetworkUnits(job.model, job.resources.ranks);
  }

  // One rank has the whole network. Where a planner chooses their number, each may have most of it.
  std::optional<RankUnits> UnitsOfRank(const JobSpec& job) const override {
    const int64_t ranks = job.resources.ranks;
    if (!Asked(job) || ranks < 2) return std::nullopt;
    return RankUnits{1.0 / static_cast<double>(ranks), MostOf(KvHeads(job.model), ranks),
                     MostOf(MlpWidth(job.model), ranks)};
  }

  // Scaled inputs of products, forward and again for the gradient of the weight, which is made of
  // the own rows or columns before it goes to its place.
  JobWorkspace WorkspaceOf(const JobSpec& job) const override {
    JobWorkspace workspace;
    if (!Asked(job) || job.resources.ranks == 1) return workspace;
    ModelSpec model = job.model;
    if (const auto units = UnitsOfRank(job)) NarrowTo(*units, model);
    const int64_t attended = QueryWidth(model), inner = MlpWidth(model), width = model.width;
    workspace.attention = {
        .forward = attended, .backward = attended, .weights = QkvWidth(model) * width};
    workspace.mlp = {
        .forward = inner, .backward = inner, .weights = MlpInputs(model) * inner * width};
    return workspace;
  }

  // The own rows or columns of a weight, and the copy that products read of them.
  int64_t StateBytes(const JobSpec& job, const ParameterInfo& parameter) const override {
    const bool divided = IsAttention(parameter.role) || IsMlp(parameter.role);
    if (!Asked(job) || job.resources.ranks == 1 || !divided || !parameter.matrix() ||
        parameter.block < 0) {
      return 0;
    }
    const int64_t units = IsAttention(parameter.role) ? KvHeads(job.model) : MlpWidth(job.model);
    const int64_t own = MostOf(units, std::max<int64_t>(job.resources.ranks, 1));
    const PrecisionRecipe& precision = PrecisionOf(job.train.precision);
    // Without units for f16 the copy that products read is f32.
    const DType packed = precision.products == DType::kF16 ? DType::kF32 : precision.products;
    const auto each = static_cast<int64_t>(DTypeSize(precision.matrices) + DTypeSize(packed));
    return parameter.Elements() / units * own * each;
  }

 private:
  /// How many of `units` the rank with most has.
  static int64_t MostOf(int64_t units, int64_t ranks) { return (units + ranks - 1) / ranks; }
};

}  // namespace

const TechniqueCost& SubNetworksTechniqueCost() {
  static const SubNetworksCost cost;
  return cost;
}

Status CheckSubNetworkUnits(const ModelSpec& model, int64_t ranks) {
  const std::pair<int64_t, std::string_view> units[] = {
      {KvHeads(model), " heads of keys and values"}, {MlpWidth(model), " neurons of an MLP"}};
  for (const auto& [count, what] : units) {
    if (count >= ranks) continue;
    return InvalidError("train.local_sub_networks gives each rank a part of the " +
                        std::to_string(count) + std::string(what) + ", and there are " +
                        std::to_string(ranks) + " ranks; hint: resources.ranks " +
                        std::to_string(count) + " or fewer, or local_sub_networks false");
  }
  return OkStatus();
}

}  // namespace weft
