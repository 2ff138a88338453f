#include "kernels/moe_route/moe_route.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/parallel.h"
#include "kernels/moe_route/moe_route_check.h"

namespace weft::kernels::cpu {
namespace {

// Logits a thread must have for a parallel region to pay.
constexpr int64_t kGrain = 2048;

// Calls fn(token) for each one.
template <class Fn>
void ForTokens(int64_t tokens, int64_t experts, Fn&& fn) {
  ParallelFor(tokens, kGrain / std::max<int64_t>(experts, 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) fn(token);
  });
}

template <class T>
void Softmax(const T* logits, int64_t experts, float* probabilities) {
  float largest = ToFloat(logits[0]);
  for (int64_t e = 1; e < experts; ++e) largest = std::max(largest, ToFloat(logits[e]));
  float sum = 0;
  for (int64_t e = 0; e < experts; ++e) {
    probabilities[e] = std::exp(ToFloat(logits[e]) - largest);
    sum += probabilities[e];
  }
  for (int64_t e = 0; e < experts; ++e) probabilities[e] /= sum;
}

// The largest ones by selection, for k is small. By logits, since different ones may have the same
// probability in f32. Where all are NaN the first.
template <class T>
void Choose(const T* logits, int64_t experts, int64_t k, int32_t* chosen) {
  for (int64_t i = 0; i < k; ++i) {
    int32_t best = -1;
    for (int32_t e = 0; e < experts; ++e) {
      if (std::find(chosen, chosen + i, e) != chosen + i) continue;
      if (best < 0 || ToFloat(logits[e]) > ToFloat(logits[best])) best = e;
    }
    chosen[i] = best;
  }
}

Status CheckExperts(const MoeDispatchArgs& args) {
  const Shape some = args.chosen.shape, experts = args.wanted_count.shape;
  const auto* chosen = args.chosen.As<int32_t>();
  for (int64_t i = 0; i < some.Elements(); ++i) {
    if (chosen[i] >= -1 && chosen[i] < experts[0]) continue;
    return InvalidError("MoeDispatch: chosen[" + std::to_string(i / some[1]) + ", " +
                        std::to_string(i % some[1]) + "] is " + std::to_string(chosen[i]) +
                        ", outside of [-1, " + std::to_string(experts[0]) + ")");
  }
  return OkStatus();
}

}  // namespace

Status MoeRoute(const Stream& stream, const MoeRouteArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMoeRoute(stream, args));
  const int64_t tokens = args.logits.shape[0];
  const int64_t experts = args.logits.shape[1], k = args.chosen.shape[1];
  const int32_t* lengths = args.lengths ? args.lengths.As<int32_t>() : nullptr;
  const int64_t row = args.lengths ? std::max<int64_t>(tokens / args.lengths.shape[0], 1) : 1;
  WithFloatType(args.logits.dtype, [&]<class T>() {
    ForTokens(tokens, experts, [&](int64_t token) {
      const T* logits = args.logits.As<T>() + token * args.logits.row_stride;
      float* probabilities = args.probabilities.As<float>() + token * experts;
      int32_t* chosen = args.chosen.As<int32_t>() + token * k;
      float* weights = args.weights.As<float>() + token * k;
      if (lengths != nullptr && token % row >= lengths[token / row]) {
        std::fill(probabilities, probabilities + experts, 0.0f);
        std::fill(chosen, chosen + k, -1);
        std::fill(weights, weights + k, 0.0f);
        return;
      }
      Softmax(logits, experts, probabilities);
      Choose(logits, experts, k, chosen);
      float sum = args.normalize ? 0.0f : 1.0f;
      for (int64_t i = 0; args.normalize && i < k; ++i) sum += probabilities[chosen[i]];
      for (int64_t i = 0; i < k; ++i) weights[i] = probabilities[chosen[i]] / sum;
    });
  });
  return OkStatus();
}

// Weights that add up to 1 are a softmax over the chosen ones' logits alone, so what they pass on
// touches no others. Those that do not are probabilities, whose gradient adds to that of balance.
Status MoeRouteBackward(const Stream& stream, const MoeRouteBackwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMoeRouteBackward(stream, args));
  const int64_t experts = args.probabilities.shape[1], k = args.chosen.shape[1];
  const auto* balance = args.balance.As<float>();
  WithFloatType(args.dlogits.dtype, [&]<class T>() {
    ForTokens(args.probabilities.shape[0], experts, [&](int64_t token) {
      const float* probabilities = args.probabilities.As<float>() + token * experts;
      const int32_t* chosen = args.chosen.As<int32_t>() + token * k;
      const float* weights = args.weights.As<float>() + token * k;
      const float* dweights = args.dweights.As<float>() + token * k;
      T* dlogits = args.dlogits.As<T>() + token * args.dlogits.row_stride;
      float mean_balance = 0, mean_dweight = 0;
      for (int64_t e = 0; e < experts; ++e) mean_balance += probabilities[e] * balance[e];
      for (int64_t i = 0; i < k; ++i) mean_dweight += weights[i] * dweights[i];
      // What of it every expert's logit gets.
      const float mean_of_all = args.normalize ? mean_balance : mean_balance + mean_dweight;
      const float mean_of_chosen = args.normalize ? mean_dweight : 0.0f;
      for (int64_t e = 0; e < experts; ++e) {
        float gradient = probabilities[e] * (balance[e] - mean_of_all);
        const int32_t* found = std::find(chosen, chosen + k, static_cast<int32_t>(e));
        if (found != chosen + k) {
          gradient += weights[found - chosen] * (dweights[found - chosen] - mean_of_chosen);
        }
        dlogits[e] = FromFloat<T>(gradient);
      }
    });
  });
  return OkStatus();
}

Status MoeDispatch(const Stream& stream, const MoeDispatchArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMoeDispatch(stream, args));
  WEFT_RETURN_IF_ERROR(CheckExperts(args));
  const int64_t choices = args.chosen.shape.Elements(), k = args.chosen.shape[1];
  const int64_t experts = args.wanted_count.shape[0];
  const auto* chosen = args.chosen.As<int32_t>();
  auto* rows = args.rows.As<int32_t>();
  auto* places = args.places.As<int32_t>();
  auto* wanted = args.wanted_count.As<int32_t>();
  auto* taken = args.taken_count.As<int32_t>();
  std::fill(wanted, wanted + experts, 0);
  for (int64_t i = 0; i < choices; ++i) {
    if (chosen[i] >= 0) ++wanted[chosen[i]];
  }
  std::vector<int32_t> next(static_cast<size_t>(experts)), end(static_cast<size_t>(experts));
  int32_t place = 0;
  const int32_t* capacities = args.capacities ? args.capacities.As<int32_t>() : nullptr;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t capacity = capacities != nullptr ? capacities[e]
                             : args.capacity > 0   ? args.capacity
                                                   : wanted[e];
    taken[e] = static_cast<int32_t>(std::min<int64_t>(wanted[e], capacity));
    next[e] = place;
    end[e] = place += taken[e];
  }
  for (int64_t i = 0; i < choices; ++i) {
    const int32_t e = chosen[i];
    places[i] = e >= 0 && next[e] < end[e] ? next[e]++ : -1;
    if (places[i] >= 0) rows[places[i]] = static_cast<int32_t>(i / k);
  }
  std::fill(rows + place, rows + choices, -1);
  return OkStatus();
}

}  // namespace weft::kernels::cpu
