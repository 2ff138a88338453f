#include "common/model/gradient_bytes.h"

#include <algorithm>
#include <vector>

#include "common/model/parameter_list.h"

namespace weft {

int64_t OpenGradientBytes(const ModelSpec& model, int64_t bucket_bytes, int64_t tensor,
                          int64_t rows, int64_t expert_ranks) {
  constexpr int64_t kF32 = 4;
  const std::vector<ParameterInfo> parameters = ParametersOfRank(model, tensor, rows);
  std::vector<int64_t> buckets;
  bool open = false, of_experts = false;
  for (auto parameter = parameters.rbegin(); parameter != parameters.rend(); ++parameter) {
    if (!IsTrained(model, *parameter) || !IsOnExpertRank(model, *parameter, expert_ranks)) continue;
    // Experts that ranks share have buckets of their own.
    const bool shared = expert_ranks > 1 && parameter->expert >= 0;
    if (!open || shared != of_experts) buckets.push_back(0);
    of_experts = shared;
    buckets.back() += kF32 * parameter->StoredElements();
    open = parameter->stacked || buckets.back() < bucket_bytes;
  }
  if (buckets.empty()) return 0;
  // A token table that classifies has its gradient first and last.
  const ParameterInfo& first = parameters.front();
  int64_t throughout = 0;
  if (IsClassifier(model, first) && IsTrained(model, first)) {
    throughout = buckets.back();
    buckets.pop_back();
  }
  // While one is filled, the one before is reduced.
  int64_t most = buckets.empty() ? 0 : buckets[0];
  for (size_t i = 1; i < buckets.size(); ++i) most = std::max(most, buckets[i - 1] + buckets[i]);
  return throughout + most;
}

int64_t BlockGradientBytes(const ModelSpec& model) {
  constexpr int64_t kF32 = 4;
  int64_t bytes = 0;
  for (const ParameterInfo& parameter : BlockParameters(model, 0)) {
    bytes += kF32 * parameter.StoredElements();
  }
  return bytes;
}

}  // namespace weft
