#include "common/model/gradient_bytes.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <numeric>
#include <vector>

#include "common/model/parameter_groups.h"
#include "common/model/parameter_list.h"
#include "common/model/streamed_units.h"
#include "common/number.h"

namespace weft {

namespace {

constexpr int64_t kF32 = 4;

/// What a rank has of the gradient of a parameter.
struct Gradient {
  int64_t unit = 0;
  int64_t bytes = 0;
  int64_t numbers = 0;
  bool none = false;        ///< It is frozen, or of an expert of another rank.
  bool of_experts = false;  ///< Of expert-parallel ranks.
  bool stacked = false;     ///< In a bucket with the one before it.
  bool of_classifier = false;
};

/// Of the `chosen` parameters, in the order of the forward pass.
std::vector<Gradient> GradientsOf(const ModelSpec& model, int64_t tensor, int64_t rows,
                                  int64_t expert_ranks,
                                  const std::function<bool(const ParameterInfo&)>& chosen) {
  std::vector<Gradient> gradients;
  VisitParametersOfRank(model, tensor, rows, [&](const ParameterInfo& parameter) {
    if (!chosen(parameter)) return;
    gradients.push_back(
        {.unit = parameter.unit,
         .bytes = kF32 * parameter.StoredElements(),
         .numbers = parameter.Elements(),
         .none = parameter.frozen || !IsOnExpertRank(model, parameter, expert_ranks),
         .of_experts = expert_ranks > 1 && parameter.expert >= 0,
         .stacked = parameter.stacked,
         .of_classifier = IsClassifier(model, parameter)});
  });
  return gradients;
}

struct Bucket {
  int64_t bytes = 0;
  int64_t unit = 0;  ///< Of its first parameter.
  int64_t numbers = 0;
  bool of_experts = false;  ///< Of expert-parallel ranks.
};

/// In the order in which they are filled.
std::vector<Bucket> CutBuckets(const std::vector<Gradient>& gradients, int64_t bucket_bytes,
                               bool in_file, const std::vector<int64_t>& kept = {}) {
  std::vector<Bucket> buckets;
  bool open = false, of_experts = false;
  for (auto gradient = gradients.rbegin(); gradient != gradients.rend(); ++gradient) {
    if (std::find(kept.begin(), kept.end(), gradient->unit) != kept.end()) {
      open = false;
      continue;
    }
    if (gradient->none) continue;
    // Experts of expert-parallel ranks have buckets of their own.
    const bool other = in_file && !buckets.empty() && buckets.back().unit != gradient->unit;
    if (!open || gradient->of_experts != of_experts || other) {
      buckets.push_back({.unit = gradient->unit, .of_experts = gradient->of_experts});
    }
    of_experts = gradient->of_experts;
    buckets.back().bytes += gradient->bytes;
    buckets.back().numbers += gradient->numbers;
    open = gradient->stacked || buckets.back().bytes < bucket_bytes;
  }
  return buckets;
}

}  // namespace

OpenGradients OpenGradientBytes(const ModelSpec& model, int64_t bucket_bytes, int64_t tensor,
                                int64_t rows, int64_t expert_ranks, bool in_file,
                                const std::vector<int64_t>& kept) {
  const auto all = [](const ParameterInfo&) { return true; };
  const std::vector<Gradient> gradients = GradientsOf(model, tensor, rows, expert_ranks, all);
  std::vector<Bucket> buckets = CutBuckets(gradients, bucket_bytes, in_file, kept);
  if (buckets.empty()) return {};
  // A token table that classifies has its gradient first and last.
  const Gradient& first = gradients.front();
  int64_t throughout = 0;
  const bool keeps_first = std::find(kept.begin(), kept.end(), 0) != kept.end();
  if (first.of_classifier && !first.none && !keeps_first) {
    throughout = buckets.back().bytes;
    buckets.pop_back();
  }
  // While one is filled, the one before is reduced.
  int64_t most = buckets.empty() ? 0 : buckets[0].bytes;
  for (size_t i = 1; i < buckets.size(); ++i) {
    most = std::max(most, buckets[i - 1].bytes + buckets[i].bytes);
  }
  const int64_t last = buckets.empty() ? 0 : buckets.back().bytes;
  return {throughout + most, std::max(most, last + throughout)};
}

FiledGradients FiledGradientBytes(const ModelShape& shape, int64_t bucket_bytes,
                                  int64_t shard_ranks, bool shares_gradients) {
  constexpr int64_t kBlock = 4096;  // of a file; memory begins at one
  FiledGradients bytes;
  std::deque<int64_t> held;  // of the last units
  int64_t numbers = 0, unit = -1;
  const std::vector<Gradient> gradients =
      GradientsOf(shape.spec, shape.tensor, shape.tensor_rows, shape.expert_ranks,
                  [&](const ParameterInfo& parameter) {
                    return IsOnStage(shape.spec, parameter, shape.embeds, shape.has_head);
                  });
  for (const Bucket& bucket : CutBuckets(gradients, bucket_bytes, true)) {
    if (bucket.unit != unit) {
      held.push_back(0);
      if (std::ssize(held) > FiledUnitsAhead(shard_ranks > 1)) held.pop_front();
      numbers = 0;
    }
    unit = bucket.unit;
    const int64_t ranks =
        bucket.of_experts ? std::max<int64_t>(shard_ranks / shape.expert_ranks, 1) : shard_ranks;
    const int64_t of_rank = (bucket.bytes + ranks - 1) / ranks;
    // Of parts the first ones have no padding.
    numbers += ranks > 1 ? of_rank / kF32 : bucket.numbers;
    bytes.numbers = std::max(bytes.numbers, numbers);
    const int64_t part = shares_gradients ? of_rank : bucket.bytes;
    const int64_t in_file = RoundUp(part, kBlock);
    bytes.file += in_file;
    held.back() += in_file + kBlock;
    bytes.host = std::max(bytes.host, std::accumulate(held.begin(), held.end(), int64_t{0}));
  }
  return bytes;
}

GradientLinkBytes GradientsOverLink(const ModelShape& shape, int64_t zero_stage,
                                    int64_t shard_ranks) {
  // Experts of expert-parallel ranks are sharded over fewer.
  const int64_t experts = shape.expert_ranks > 1 ? shape.stored_trained_experts : 0;
  const int64_t alike = std::max<int64_t>(shard_ranks / shape.expert_ranks, 1);
  const int64_t all = kF32 * shape.trained;
  const int64_t part = kF32 * ((shape.trained - experts) / shard_ranks + experts / alike);
  if (zero_stage > 1 && shard_ranks > 1)
    return {.down = part, .earlier_down = part, .earlier_up = 0};
  return {.down = part, .earlier_down = all, .earlier_up = all};
}

int64_t BlockGradientBytes(const ModelSpec& model, int64_t tensor, int64_t rows) {
  int64_t bytes = 0;
  for (const ParameterGroup& group : ParameterGroupsOfRank(model, tensor, rows)) {
    if (group.first.block != 0) continue;
    bytes += kF32 * group.experts * group.first.StoredElements();
  }
  return bytes;
}

}  // namespace weft
