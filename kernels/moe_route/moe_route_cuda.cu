#include "kernels/cuda/row_map.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/moe_route/moe_route.h"
#include "kernels/moe_route/moe_route_check.h"

namespace weft::kernels::cuda {
namespace {

// A warp has a token, its lanes every 32nd expert, and each a bit for those that it has given away.
constexpr int kMostExperts = 64 * kWarp;
constexpr int kTokensOfBlock = kBlockThreads / kWarp;

Status CheckExperts(const char* op, int64_t experts) {
  if (experts <= kMostExperts) return OkStatus();
  return InvalidError(std::string(op) + ": " + std::to_string(experts) +
                      " experts are more than the " + std::to_string(kMostExperts) +
                      " that a CUDA device routes to");
}

LaunchShape OneWarpEach(int64_t tokens) {
  return {.grid = {CeilDiv(tokens, kTokensOfBlock)}, .block = {kBlockThreads}};
}

__device__ int64_t TokenOfWarp() {
  return int64_t{blockIdx.x} * kTokensOfBlock + static_cast<int>(threadIdx.x) / kWarp;
}
__device__ int Lane() {
  return static_cast<int>(threadIdx.x) % kWarp;
}

// NaN comes last.
__device__ bool IsBefore(float logit, int expert, float other, int other_expert) {
  if (other_expert < 0) return expert >= 0;
  if (expert < 0) return false;
  const bool nan = logit != logit, other_nan = other != other;
  if (nan != other_nan) return other_nan;
  if (!nan && logit != other) return logit > other;
  return expert < other_expert;
}

// Equal parts of the tokens, padded at their end.
struct Rows {
  const int32_t* lengths;  ///< Or none.
  int64_t row;             ///< Tokens of a part.

  __device__ bool IsPadding(int64_t token) const {
    return lengths != nullptr && token % row >= lengths[token / row];
  }
};

template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    RouteKernel(StridedRows<const T> logits, float* probabilities, int32_t* chosen, float* weights,
                Rows rows, int64_t tokens, int experts, int k, bool normalize) {
  const int64_t token = TokenOfWarp();
  const int lane = Lane();
  if (token >= tokens) return;
  if (rows.IsPadding(token)) {
    for (int e = lane; e < experts; e += kWarp) probabilities[token * experts + e] = 0;
    for (int i = lane; i < k; i += kWarp) {
      chosen[token * k + i] = -1;
      weights[token * k + i] = 0;
    }
    return;
  }
  const T* of_token = logits.At(token, 0);
  float largest = -INFINITY;
  for (int e = lane; e < experts; e += kWarp) largest = fmaxf(largest, Widen(of_token[e]));
  largest = WarpMax(largest);
  float sum = 0;
  for (int e = lane; e < experts; e += kWarp) sum += expf(Widen(of_token[e]) - largest);
  sum = WarpSum(sum);
  const auto probability = [&](int e) { return expf(Widen(of_token[e]) - largest) / sum; };
  for (int e = lane; e < experts; e += kWarp) probabilities[token * experts + e] = probability(e);

  uint64_t given = 0;
  float share = 0;
  for (int i = 0; i < k; ++i) {
    float best = 0;
    int expert = -1;
    for (int e = lane, bit = 0; e < experts; e += kWarp, ++bit) {
      if ((given >> bit & 1) != 0) continue;
      const float logit = Widen(of_token[e]);
      if (!IsBefore(logit, e, best, expert)) continue;
      best = logit;
      expert = e;
    }
#pragma unroll
    for (int bits = kWarp / 2; bits > 0; bits /= 2) {
      const float other = __shfl_xor_sync(kAllLanes, best, bits);
      const int other_expert = __shfl_xor_sync(kAllLanes, expert, bits);
      if (!IsBefore(other, other_expert, best, expert)) continue;
      best = other;
      expert = other_expert;
    }
    if (expert % kWarp == lane) given |= uint64_t{1} << (expert / kWarp);
    share += probability(expert);
    if (lane == 0) chosen[token * k + i] = expert;
  }
  if (lane != 0) return;
  if (!normalize) share = 1;
  for (int64_t i = token * k; i < (token + 1) * k; ++i) weights[i] = probability(chosen[i]) / share;
}

struct Routed {
  const float* probabilities;
  const int32_t* chosen;
  const float* weights;
  const float* dweights;
  const float* balance;
  bool normalize;
};

// Weights that add up to 1 are a softmax over the chosen ones' logits alone, so what they pass on
// touches no others. Those that do not are probabilities, whose gradient adds to that of balance.
template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    RouteBackwardKernel(Routed routed, StridedRows<T> dlogits, int64_t tokens, int experts, int k) {
  const int64_t token = TokenOfWarp();
  const int lane = Lane();
  if (token >= tokens) return;
  const float* probabilities = routed.probabilities + token * experts;
  const int64_t first = token * k;
  float mean_balance = 0, mean_dweight = 0;
  for (int e = lane; e < experts; e += kWarp) mean_balance += probabilities[e] * routed.balance[e];
  mean_balance = WarpSum(mean_balance);
  for (int i = 0; i < k; ++i) {
    mean_dweight += routed.weights[first + i] * routed.dweights[first + i];
  }
  // What of it every expert's logit gets.
  const float mean_of_all = routed.normalize ? mean_balance : mean_balance + mean_dweight;
  const float mean_of_chosen = routed.normalize ? mean_dweight : 0.0f;
  for (int e = lane; e < experts; e += kWarp) {
    float gradient = probabilities[e] * (routed.balance[e] - mean_of_all);
    for (int i = 0; i < k; ++i) {
      if (routed.chosen[first + i] != e) continue;
      gradient += routed.weights[first + i] * (routed.dweights[first + i] - mean_of_chosen);
    }
    *dlogits.At(token, e) = Narrow<T>(gradient);
  }
}

// Choices are partitioned in parts, each a block's: the choices of each expert are counted by part,
// then parts find where theirs begin, and then each choice its place, by the number of those before
// it in its part that want the same expert. So the order depends on no race.
constexpr int kPart = 512;

struct Dispatch {
  const int32_t* chosen;
  int32_t* rows;
  int32_t* places;
  int32_t* wanted;
  int32_t* taken;
  int32_t* before;  ///< [parts, experts]: choices of each expert in the part, then in those before.
  int32_t* begins;  ///< [experts]: the place of the first choice.
  const int32_t* capacities;  ///< [experts], or none.
  int64_t choices;
  int64_t capacity;
  int parts;
  int experts;
  int k;

  // -1: none.
  __device__ int Expert(int64_t i) const {
    const int expert = chosen[i];
    return expert >= 0 && expert < experts ? expert : -1;
  }
};

__global__ void __launch_bounds__(kBlockThreads) CountKernel(Dispatch d) {
  auto* counts = DynamicShared<int32_t>();
  const int thread = static_cast<int>(threadIdx.x);
  for (int e = thread; e < d.experts; e += kBlockThreads) counts[e] = 0;
  __syncthreads();
  const int64_t begin = int64_t{blockIdx.x} * kPart;
  for (int64_t i = begin + thread; i < begin + kPart && i < d.choices; i += kBlockThreads) {
    d.rows[i] = -1;
    const int expert = d.Expert(i);
    if (expert >= 0) atomicAdd(&counts[expert], 1);
  }
  __syncthreads();
  for (int e = thread; e < d.experts; e += kBlockThreads) {
    d.before[int64_t{blockIdx.x} * d.experts + e] = counts[e];
  }
}

// One block.
__global__ void __launch_bounds__(kBlockThreads) BeginKernel(Dispatch d) {
  auto* taken = DynamicShared<int32_t>();
  const int thread = static_cast<int>(threadIdx.x);
  for (int e = thread; e < d.experts; e += kBlockThreads) {
    int32_t wanted = 0;
    for (int64_t part = 0; part < d.parts; ++part) {
      int32_t& count = d.before[part * d.experts + e];
      const int32_t own = count;
      count = wanted;
      wanted += own;
    }
    d.wanted[e] = wanted;
    const int64_t capacity = d.capacities != nullptr ? d.capacities[e]
                             : d.capacity > 0        ? d.capacity
                                                     : wanted;
    d.taken[e] = taken[e] = wanted > capacity ? static_cast<int32_t>(capacity) : wanted;
  }
  __syncthreads();
  for (int e = thread; e < d.experts; e += kBlockThreads) {
    int32_t begin = 0;
    for (int other = 0; other < e; ++other) begin += taken[other];
    d.begins[e] = begin;
  }
}

__global__ void __launch_bounds__(kBlockThreads) PlaceKernel(Dispatch d) {
  WEFT_SHARED(experts, int32_t[kPart]);
  const int64_t begin = int64_t{blockIdx.x} * kPart;
  for (int at = static_cast<int>(threadIdx.x); at < kPart; at += kBlockThreads) {
    experts[at] = begin + at < d.choices ? d.Expert(begin + at) : -1;
  }
  __syncthreads();
  for (int at = static_cast<int>(threadIdx.x); at < kPart; at += kBlockThreads) {
    const int64_t i = begin + at;
    if (i >= d.choices) return;
    const int expert = experts[at];
    int32_t place = -1;
    if (expert >= 0) {
      int32_t turn = d.before[int64_t{blockIdx.x} * d.experts + expert];
      for (int other = 0; other < at; ++other) turn += experts[other] == expert ? 1 : 0;
      if (turn < d.taken[expert]) place = d.begins[expert] + turn;
    }
    d.places[i] = place;
    if (place >= 0) d.rows[place] = static_cast<int32_t>(i / d.k);
  }
}

}  // namespace

Status MoeRoute(const Stream& stream, const MoeRouteArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMoeRoute(stream, args));
  const int64_t tokens = args.logits.shape[0], experts = args.logits.shape[1];
  WEFT_RETURN_IF_ERROR(CheckExperts("MoeRoute", experts));
  Rows rows = {nullptr, 1};
  if (args.lengths) rows = {args.lengths.As<int32_t>(), CeilDiv(tokens, args.lengths.shape[0])};
  return WithFloatType(args.logits.dtype, [&]<class T>() {
    return Launch(
        stream, "MoeRoute", OneWarpEach(tokens), RouteKernel<T>, RowsOf<const T>(args.logits),
        args.probabilities.As<float>(), args.chosen.As<int32_t>(), args.weights.As<float>(), rows,
        tokens, static_cast<int>(experts), static_cast<int>(args.chosen.shape[1]), args.normalize);
  });
}

Status MoeRouteBackward(const Stream& stream, const MoeRouteBackwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMoeRouteBackward(stream, args));
  const int64_t tokens = args.probabilities.shape[0], experts = args.probabilities.shape[1];
  WEFT_RETURN_IF_ERROR(CheckExperts("MoeRouteBackward", experts));
  const Routed routed = {args.probabilities.As<float>(), args.chosen.As<int32_t>(),
                         args.weights.As<float>(),       args.dweights.As<float>(),
                         args.balance.As<float>(),       args.normalize};
  return WithFloatType(args.dlogits.dtype, [&]<class T>() {
    return Launch(stream, "MoeRouteBackward", OneWarpEach(tokens), RouteBackwardKernel<T>, routed,
                  RowsOf<T>(args.dlogits), tokens, static_cast<int>(experts),
                  static_cast<int>(args.chosen.shape[1]));
  });
}

Status MoeDispatch(const Stream& stream, const MoeDispatchArgs& args) {
  constexpr const char* kOp = "MoeDispatch";
  WEFT_RETURN_IF_ERROR(CheckMoeDispatch(stream, args));
  const int64_t choices = args.chosen.shape.Elements(), experts = args.wanted_count.shape[0];
  WEFT_RETURN_IF_ERROR(CheckExperts(kOp, experts));
  const int64_t parts = CeilDiv(choices, kPart);
  WEFT_ASSIGN_OR_RETURN(int32_t * scratch, ScratchOf<int32_t>(stream, kOp, (parts + 1) * experts));
  const Dispatch dispatch = {
      .chosen = args.chosen.As<int32_t>(),
      .rows = args.rows.As<int32_t>(),
      .places = args.places.As<int32_t>(),
      .wanted = args.wanted_count.As<int32_t>(),
      .taken = args.taken_count.As<int32_t>(),
      .before = scratch,
      .begins = scratch + parts * experts,
      .capacities = args.capacities ? args.capacities.As<int32_t>() : nullptr,
      .choices = choices,
      .capacity = args.capacity,
      .parts = static_cast<int>(parts),
      .experts = static_cast<int>(experts),
      .k = static_cast<int>(args.chosen.shape[1])};
  const size_t shared = static_cast<size_t>(experts) * sizeof(int32_t);
  const LaunchShape all = {.grid = {static_cast<unsigned>(parts)}, .block = {kBlockThreads}};
  WEFT_RETURN_IF_ERROR(Launch(stream, kOp, {all.grid, all.block, shared}, CountKernel, dispatch));
  WEFT_RETURN_IF_ERROR(Launch(stream, kOp,
                              {.grid = {1}, .block = {kBlockThreads}, .shared_bytes = shared},
                              BeginKernel, dispatch));
  return Launch(stream, kOp, all, PlaceKernel, dispatch);
}

}  // namespace weft::kernels::cuda
