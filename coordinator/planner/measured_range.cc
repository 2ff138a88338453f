#include "coordinator/planner/measured_range.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <string>
#include <string_view>

#include "common/model/model_counts.h"
#include "common/model/precision.h"
#include "coordinator/planner/rank_share.h"

namespace weft::planner {
namespace {

// So much further than measured, rates are still those of the nearest product.
constexpr int64_t kNear = 2;
// Products with less of the work do not decide the step.
constexpr double kSmallShare = 0.01;

struct Span {
  int64_t low = std::numeric_limits<int64_t>::max();
  int64_t high = 0;

  void Add(int64_t value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

/// Rows, columns and inner sizes.
using Sizes = std::array<Span, 3>;
constexpr std::array<std::string_view, 3> kSizeNames = {"rows of products", "columns of products",
                                                        "inner size of products"};

void Add(Sizes& sizes, int64_t m, int64_t n, int64_t k) {
  sizes[0].Add(m);
  sizes[1].Add(n);
  sizes[2].Add(k);
}

/// Sizes of the products with weights that the measured rates are of. `in_format`: these have
/// operands in a format, and adapters' products are dense.
Sizes ProductsOf(const JobSpec& job, const CostedPlan& costed, bool in_format) {
  const int64_t length = SequenceLength(job) / costed.context;
  const std::vector<Gemm> products =
      WeightGemms(ShapeOfRank(job), costed.micro_batch * length, SequenceLength(job),
                  ElementBytes(PrecisionOf(job.train.precision).activations));
  double work = 0;
  for (const Gemm& product : products) work += product.Flops();
  Sizes sizes;
  for (const Gemm& product : products) {
    if (in_format && product.of_adapter) continue;
    if (product.Flops() > kSmallShare * work) Add(sizes, product.m, product.n, product.k);
  }
  return sizes;
}

/// What of one worker the plan extrapolates.
std::vector<Extrapolation> OutsideOf(const JobSpec& job, const WorkerProfile& worker,
                                     const CostedPlan& costed, int64_t ranks) {
  std::vector<Extrapolation> outside;
  const DeviceSpec* device = nullptr;
  for (const DeviceSpec& each : worker.devices) {
    if (costed.on_devices && device == nullptr && each.unusable.empty()) device = &each;
  }
  const std::vector<GemmRate>& rates = device != nullptr ? device->gemm : worker.gemm;
  const PrecisionRecipe& recipe = PrecisionOf(job.train.precision);
  const ProductFormat* format = device != nullptr ? recipe.block_products : nullptr;
  const std::string_view precision =
      format != nullptr ? format->rate_name : GemmRateName(recipe.products);
  Sizes measured;
  Span threads;
  std::set<std::string> precisions;
  for (const GemmRate& rate : rates) {
    if (rate.flops_per_second <= 0) continue;
    precisions.insert(rate.precision);
    if (rate.precision != precision) continue;
    Add(measured, rate.m, rate.n, rate.k);
    threads.Add(rate.threads);
  }
  if (!precisions.contains(std::string(precision))) {
    std::string known;
    for (const std::string& name : precisions) known += (known.empty() ? "" : ", ") + name;
    outside.push_back(OutsideKinds("products of", std::string(precision), known));
  } else {
    const Sizes needed = ProductsOf(job, costed, format != nullptr);
    for (size_t i = 0; i < needed.size(); ++i) {
      const Span& span = measured[i];
      if (needed[i].high > kNear * span.high) {
        outside.push_back(OutsideSpan(kSizeNames[i], needed[i].high, span.low, span.high));
      } else if (kNear * needed[i].low < span.low) {
        outside.push_back(OutsideSpan(kSizeNames[i], needed[i].low, span.low, span.high));
      }
    }
    if (device == nullptr && (costed.threads < threads.low || costed.threads > threads.high)) {
      outside.push_back(
          OutsideSpan("threads of a rank", costed.threads, threads.low, threads.high));
    }
  }
  const auto timed = [](const DeviceLink& link) { return link.bytes_per_second > 0; };
  if (device != nullptr && ranks > 1 &&
      std::none_of(device->links.begin(), device->links.end(), timed)) {
    outside.push_back(OutsideKinds("links", "between GPUs", ""));
  }
  if (ranks < costed.ranks && worker.network_bytes_per_second <= 0) {
    outside.push_back(OutsideKinds("links", "between machines", "within one"));
  }
  return outside;
}

}  // namespace

std::vector<Extrapolation> OutsideMeasured(const JobSpec& job, const SearchResult& result,
                                           const CostedPlan& costed) {
  std::vector<Extrapolation> outside;
  std::set<size_t> seen;
  const std::vector<int64_t> ranks_on = PlaceRanks(costed, result.workers->workers());
  for (size_t w = 0; w < result.workers->workers().size(); ++w) {
    if (ranks_on[w] == 0 || !seen.insert(result.workers->kinds()[w]).second) continue;
    for (Extrapolation& each : OutsideOf(job, *result.workers->workers()[w], costed, ranks_on[w])) {
      const bool known =
          std::any_of(outside.begin(), outside.end(),
                      [&](const Extrapolation& other) { return other.quantity == each.quantity; });
      if (!known) outside.push_back(std::move(each));
    }
  }
  return outside;
}

}  // namespace weft::planner
