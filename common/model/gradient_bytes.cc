#include "common/model/gradient_bytes.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <numeric>
#include <vector>

#include "common/model/parameter_groups.h"
#include "common/model/parameter_list.h"
#include "common/model/streamed_units.h"
#include "common/model/technique_cost.h"
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
  int64_t source_bytes = 0;  ///< Of the gradients of what it is derived from.
  bool of_derived = false;   ///< It is derived, or stacked with such.
  int64_t bucket = -1;       ///< That it is in; -1: none.
};

/// Lists the gradients of the `chosen` parameters in the order of the forward pass.
std::vector<Gradient> GradientsOf(const ModelSpec& model, int64_t tensor, int64_t rows,
                                  int64_t expert_ranks,
                                  const std::function<bool(const ParameterInfo&)>& chosen) {
  const RepeatedBlock listed = RepeatedBlockOfRank(model, tensor, rows);
  std::vector<Gradient> gradients;
  const auto add = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const ParameterInfo& parameter = listed.parameters[i];
      if (!chosen(parameter)) continue;
      gradients.push_back(
          {.unit = parameter.unit,
           .bytes = kF32 * parameter.StoredElements(),
           .numbers = parameter.Elements(),
           .none = parameter.frozen || !IsOnExpertRank(model, parameter, expert_ranks),
           .of_experts = expert_ranks > 1 && parameter.expert >= 0,
           .stacked = parameter.stacked,
           .of_classifier = IsClassifier(model, parameter)});
      for (const ParameterInfo& source : SourcesOf(model, parameter)) {
        gradients.back().source_bytes += kF32 * source.Elements();
      }
    }
  };
  add(0, listed.begin);
  const size_t before = gradients.size();
  add(listed.begin, listed.end);
  const size_t of_block = gradients.size() - before;
  for (int64_t block = 1; block < listed.blocks; ++block) {
    for (size_t i = 0; i < of_block; ++i) {
      gradients.push_back(gradients[gradients.size() - of_block]);
      ++gradients.back().unit;
    }
  }
  add(listed.end, listed.parameters.size());
  for (size_t first = 0, end = 0; first < gradients.size(); first = end) {
    bool of_derived = gradients[first].source_bytes > 0;
    for (end = first + 1; end < gradients.size() && gradients[end].stacked; ++end) {
      of_derived |= gradients[end].source_bytes > 0;
    }
    for (size_t i = first; i < end; ++i) gradients[i].of_derived = of_derived;
  }
  return gradients;
}

struct Bucket {
  int64_t bytes = 0;
  int64_t unit = 0;  ///< Of its first parameter.
  int64_t numbers = 0;
  bool of_experts = false;  ///< Of expert-parallel ranks.
};

/// Adds the buckets of what is, or is not, `of_derived` in the order in which they are filled.
void CutBuckets(std::vector<Gradient>& gradients, bool of_derived, int64_t bucket_bytes,
                bool in_file, const std::vector<int64_t>& kept, std::vector<Bucket>& buckets) {
  bool open = false, of_experts = false;
  for (auto gradient = gradients.rbegin(); gradient != gradients.rend(); ++gradient) {
    if (gradient->of_derived != of_derived) continue;
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
    gradient->bucket = std::ssize(buckets) - 1;
    open = gradient->stacked || buckets.back().bytes < bucket_bytes;
  }
}

/// Says of each gradient which bucket it is in.
std::vector<Bucket> CutBuckets(std::vector<Gradient>& gradients, int64_t bucket_bytes, bool in_file,
                               const std::vector<int64_t>& kept = {}) {
  std::vector<Bucket> buckets;
  CutBuckets(gradients, true, bucket_bytes, in_file, kept, buckets);
  CutBuckets(gradients, false, bucket_bytes, in_file, kept, buckets);
  return buckets;
}

/// Memory of the buckets of a backward pass.
class OpenBuckets {
 public:
  explicit OpenBuckets(const std::vector<Bucket>& buckets)
      : buckets_(buckets), is_open_(buckets.size()) {}

  /// While it is filled, no more than one that is complete is reduced.
  void Open(int64_t bucket) {
    if (is_open_[static_cast<size_t>(bucket)]) return;
    is_open_[static_cast<size_t>(bucket)] = true;
    for (; in_transfer_.size() > 1; in_transfer_.pop_front())
      held_ -= BytesOf(in_transfer_.front());
    held_ += BytesOf(bucket);
    most_.bytes = std::max(most_.bytes, held_);
  }
  void Complete(int64_t bucket) {
    in_transfer_.push_back(bucket);
    int64_t bytes = 0;
    for (const int64_t each : in_transfer_) bytes += BytesOf(each);
    most_.in_transfer = std::max(most_.in_transfer, bytes);
  }
  OpenGradients most() const { return most_; }

 private:
  int64_t BytesOf(int64_t bucket) const { return buckets_[static_cast<size_t>(bucket)].bytes; }

  const std::vector<Bucket>& buckets_;
  std::vector<bool> is_open_;
  std::deque<int64_t> in_transfer_;
  int64_t held_ = 0;
  OpenGradients most_;
};

/// Most bytes while derived weights are split, whose buckets are gathered one by one: the largest
/// bucket with the gradients of what one of its weights is derived from.
int64_t SplitGradientBytes(const std::vector<Gradient>& gradients,
                           const std::vector<Bucket>& buckets) {
  int64_t most = 0;
  for (const Gradient& gradient : gradients) {
    if (gradient.source_bytes == 0 || gradient.bucket < 0) continue;
    const int64_t bucket = buckets[static_cast<size_t>(gradient.bucket)].bytes;
    most = std::max(most, bucket + gradient.source_bytes);
  }
  return most;
}

}  // namespace

OpenGradients OpenGradientBytes(const ModelSpec& model, int64_t bucket_bytes, int64_t tensor,
                                int64_t rows, int64_t expert_ranks, bool in_file,
                                const std::vector<int64_t>& kept) {
  const auto all = [](const ParameterInfo&) { return true; };
  std::vector<Gradient> gradients = GradientsOf(model, tensor, rows, expert_ranks, all);
  const std::vector<Bucket> buckets = CutBuckets(gradients, bucket_bytes, in_file, kept);
  std::vector<int64_t> missing(buckets.size());
  for (const Gradient& gradient : gradients) {
    if (gradient.bucket >= 0) ++missing[static_cast<size_t>(gradient.bucket)];
  }
  OpenBuckets open(buckets);
  // A token table that classifies has its gradient first and last.
  if (!gradients.empty() && gradients.front().of_classifier && gradients.front().bucket >= 0) {
    open.Open(gradients.front().bucket);
  }
  for (auto gradient = gradients.rbegin(); gradient != gradients.rend(); ++gradient) {
    if (gradient->bucket < 0) continue;
    open.Open(gradient->bucket);
    if (--missing[static_cast<size_t>(gradient->bucket)] == 0) open.Complete(gradient->bucket);
  }
  OpenGradients most = open.most();
  most.bytes = std::max(most.bytes, SplitGradientBytes(gradients, buckets));
  return most;
}

FiledGradients FiledGradientBytes(const ModelShape& shape, int64_t bucket_bytes,
                                  int64_t shard_ranks, bool shares_gradients) {
  constexpr int64_t kBlock = 4096;  // of a file; memory begins at one
  FiledGradients bytes;
  std::deque<int64_t> held;  // of the last units
  int64_t numbers = 0, unit = -1;
  std::vector<Gradient> gradients =
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
    // The largest part counts, and the first parts have no padding.
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
