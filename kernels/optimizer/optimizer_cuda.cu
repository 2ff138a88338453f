#include <cmath>
#include <cstdint>
#include <utility>

#include "common/rng.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/stochastic_round.h"
#include "kernels/cuda/vector.h"
#include "kernels/optimizer/optimizer.h"
#include "kernels/optimizer/optimizer_check.h"

// The rates by norm of these need sums over whole tensors first.
WEFT_NO_CUDA_OP(Lars, LarsArgs)
WEFT_NO_CUDA_OP(Lamb, LambArgs)

namespace weft::kernels::cuda {
namespace {

// Elements of a tensor that a block updates.
constexpr int64_t kChunk = 16384;

// Tensors of a launch: what fits in its parameters, so that nothing is copied to the device first.
constexpr int kMostTensors = 352;

// Neighbouring elements that a thread updates together: those of a Philox block.
constexpr int kTogether = 4;

struct TensorEntry {
  float* parameter;
  BFloat16* bf16_parameter;
  const float* gradient;
  float* state[3];
  int64_t count;
  int64_t first_element;
  int first_chunk;  ///< Of the launch, whose blocks are the chunks of all tensors.
  float rate;
  float weight_decay;
  uint32_t rounding_site;
  bool aligned;
};

struct UpdateTable {
  TensorEntry tensors[kMostTensors];
  int count = 0;
  float gradient_scale;
  float gradient_limit;
  PhiloxKey rounding;
};

// What a rule sees of an element, and may change but for the gradient.
struct Element {
  float gradient;
  float parameter;
  float state[3];
};

// The tensor whose chunks the block is one of.
__device__ const TensorEntry& FindTensor(const UpdateTable& table, int chunk) {
  int low = 0, high = table.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (table.tensors[middle].first_chunk <= chunk) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return table.tensors[low];
}

template <class T>
__device__ void LoadSome(const T* from, int64_t i, int count, bool wide, float (&to)[kTogether]) {
  if (wide) {
    LoadFloats(from + i, to);
    return;
  }
#pragma unroll
  for (int k = 0; k < kTogether; ++k) to[k] = k < count ? Widen(from[i + k]) : 0.0f;
}

__device__ void StoreSome(float* to, int64_t i, int count, bool wide,
                          const float (&from)[kTogether]) {
  if (wide) {
    StoreFloats(to + i, from);
    return;
  }
#pragma unroll
  for (int k = 0; k < kTogether; ++k) {
    if (k < count) to[i + k] = from[k];
  }
}

__device__ void RoundSome(BFloat16* to, int64_t i, int count, bool wide,
                          const float (&from)[kTogether], const PhiloxKey& key, int64_t element) {
  const Philox4 words = Philox(key, static_cast<uint64_t>(element) / kTogether);
  BFloat16 rounded[kTogether];
#pragma unroll
  for (int k = 0; k < kTogether; ++k) rounded[k] = RoundStochastically(from[k], words.v[k]);
  if (wide) {
    ptx::Store8(to + i, uint2{rounded[0].bits | uint32_t{rounded[1].bits} << 16,
                              rounded[2].bits | uint32_t{rounded[3].bits} << 16});
    return;
  }
#pragma unroll
  for (int k = 0; k < kTogether; ++k) {
    if (k < count) to[i + k] = rounded[k];
  }
}

// One pass over all tensors of the table: a rule has kStates and
//   __device__ void operator()(Element& e, float rate, float weight_decay) const
template <class Rule>
__global__ void __launch_bounds__(kBlockThreads)
    UpdateKernel(const __grid_constant__ UpdateTable table, const Rule rule) {
  const TensorEntry& t = FindTensor(table, static_cast<int>(blockIdx.x));
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) - t.first_chunk) * kChunk;
  const int64_t end = begin + kChunk < t.count ? begin + kChunk : t.count;
  for (int64_t i = begin + int64_t{threadIdx.x} * kTogether; i < end;
       i += int64_t{kBlockThreads} * kTogether) {
    const int count = end - i < kTogether ? static_cast<int>(end - i) : kTogether;
    const bool wide = t.aligned && count == kTogether;
    float p[kTogether], g[kTogether], s[3][kTogether];
    if (t.bf16_parameter != nullptr) {
      LoadSome(t.bf16_parameter, i, count, wide, p);
    } else {
      LoadSome(t.parameter, i, count, wide, p);
    }
    LoadSome(t.gradient, i, count, wide, g);
#pragma unroll
    for (int k = 0; k < Rule::kStates; ++k) LoadSome(t.state[k], i, count, wide, s[k]);
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      Element e;
      // Comparisons keep a NaN, which fminf and fmaxf would lose.
      e.gradient = g[k] * table.gradient_scale;
      if (e.gradient > table.gradient_limit) e.gradient = table.gradient_limit;
      if (e.gradient < -table.gradient_limit) e.gradient = -table.gradient_limit;
      e.parameter = p[k];
#pragma unroll
      for (int j = 0; j < Rule::kStates; ++j) e.state[j] = s[j][k];
      rule(e, t.rate, t.weight_decay);
      p[k] = e.parameter;
#pragma unroll
      for (int j = 0; j < Rule::kStates; ++j) s[j][k] = e.state[j];
    }
#pragma unroll
    for (int k = 0; k < Rule::kStates; ++k) StoreSome(t.state[k], i, count, wide, s[k]);
    if constexpr (Rule::kChangesParameter) {
      if (t.bf16_parameter != nullptr) {
        const PhiloxKey key = {table.rounding.seed, table.rounding.step, t.rounding_site};
        RoundSome(t.bf16_parameter, i, count, wide, p, key, t.first_element + i);
      } else {
        StoreSome(t.parameter, i, count, wide, p);
      }
    }
  }
}

template <class Rule>
Status Update(const Stream& stream, std::string_view op, const UpdateInputs& update,
              const Rule& rule) {
  UpdateTable table;
  table.gradient_scale = update.gradient_scale;
  table.gradient_limit = update.gradient_limit;
  table.rounding = {.seed = update.seed, .step = update.step, .site = 0};
  int64_t chunks = 0;
  const auto launch = [&] {
    Status status =
        Launch(stream, op, {.grid = {static_cast<unsigned>(chunks)}, .block = {kBlockThreads}},
               UpdateKernel<Rule>, table, rule);
    table.count = 0;
    chunks = 0;
    return status;
  };
  for (const UpdateTensor& tensor : update.tensors) {
    if (tensor.count == 0) continue;
    if (table.count == kMostTensors) WEFT_RETURN_IF_ERROR(launch());
    TensorEntry& entry = table.tensors[table.count++];
    entry = {.parameter = tensor.parameter,
             .bf16_parameter = tensor.bf16_parameter,
             .gradient = tensor.gradient,
             .state = {tensor.state[0], tensor.state[1], tensor.state[2]},
             .count = tensor.count,
             .first_element = tensor.first_element,
             .first_chunk = static_cast<int>(chunks),
             .rate = update.learning_rate * tensor.learning_rate_scale,
             .weight_decay = tensor.weight_decay,
             .rounding_site = tensor.rounding_site,
             .aligned = Aligned16(tensor.parameter, tensor.bf16_parameter, tensor.gradient,
                                  tensor.state[0], tensor.state[1], tensor.state[2])};
    chunks += CeilDiv(tensor.count, kChunk);
  }
  return launch();
}

template <bool kMomentum>
struct SgdRule {
  static constexpr int kStates = kMomentum ? 1 : 0;
  static constexpr bool kChangesParameter = true;
  float momentum;
  bool nesterov;

  __device__ void operator()(Element& e, float rate, float weight_decay) const {
    const float g = e.gradient + e.parameter * weight_decay;
    float direction = g;
    if constexpr (kMomentum) {
      e.state[0] = e.state[0] * momentum + g;
      direction = nesterov ? g + momentum * e.state[0] : e.state[0];
    }
    e.parameter -= direction * rate;
  }
};

struct AdamRule {
  static constexpr int kStates = 2;
  static constexpr bool kChangesParameter = true;
  float beta1;
  float beta2;
  float mean_scale;      ///< 1 / (1 - beta1^step)
  float variance_scale;  ///< 1 / sqrt(1 - beta2^step)
  float epsilon;
  bool decoupled;

  __device__ void operator()(Element& e, float rate, float weight_decay) const {
    const float g = decoupled ? e.gradient : e.gradient + e.parameter * weight_decay;
    float &m = e.state[0], &v = e.state[1];
    m = (m - g) * beta1 + g;
    v = (v - g * g) * beta2 + g * g;
    if (decoupled) e.parameter *= 1.0f - rate * weight_decay;
    e.parameter -= m * (rate * mean_scale) / (sqrtf(v) * variance_scale + epsilon);
  }
};

struct LionRule {
  static constexpr int kStates = 1;
  static constexpr bool kChangesParameter = true;
  float beta1;
  float beta2;

  __device__ void operator()(Element& e, float rate, float weight_decay) const {
    const float g = e.gradient;
    float& m = e.state[0];
    const float c = (m - g) * beta1 + g;
    const float sign = (c > 0 ? 1.0f : 0.0f) - (c < 0 ? 1.0f : 0.0f);
    e.parameter = e.parameter * (1.0f - rate * weight_decay) - sign * rate;
    m = (m - g) * beta2 + g;
  }
};

struct ScheduleFreeRule {
  static constexpr int kStates = 3;
  static constexpr bool kChangesParameter = true;
  float beta1;
  float beta2;
  float epsilon;
  float correction;  ///< sqrt(1 - beta2^step)
  float average_weight;

  __device__ void operator()(Element& e, float rate, float weight_decay) const {
    const float g = e.gradient, step = rate * correction;
    float &x = e.state[0], &z = e.state[1], &v = e.state[2];
    v = (v - g * g) * beta2 + g * g;
    z -= e.parameter * (step * weight_decay) + g * step / (sqrtf(v) + epsilon);
    x = (z - x) * average_weight + x;
    e.parameter = (x - z) * beta1 + z;
  }
};

struct MomentumRule {
  static constexpr int kStates = 2;
  static constexpr bool kChangesParameter = false;
  float momentum;
  bool nesterov;

  __device__ void operator()(Element& e, float, float) const {
    const float g = e.gradient, m = (e.state[0] - g) * momentum + g;
    e.state[0] = m;
    e.state[1] = nesterov ? (m - g) * momentum + g : m;
  }
};

/// 1 - beta^step
double Correction(float beta, int64_t step) {
  return 1 - std::pow(static_cast<double>(beta), static_cast<double>(step));
}

}  // namespace

Status Sgd(const Stream& stream, const SgdArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckSgd(stream, args));
  if (args.momentum == 0) return Update(stream, "Sgd", args.update, SgdRule<false>{});
  return Update(stream, "Sgd", args.update, SgdRule<true>{args.momentum, args.nesterov});
}

Status Adam(const Stream& stream, const AdamArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckAdam(stream, args));
  return Update(stream, "Adam", args.update,
                AdamRule{.beta1 = args.beta1,
                         .beta2 = args.beta2,
                         .mean_scale = static_cast<float>(1 / Correction(args.beta1, args.step)),
                         .variance_scale =
                             static_cast<float>(1 / std::sqrt(Correction(args.beta2, args.step))),
                         .epsilon = args.epsilon,
                         .decoupled = args.decoupled_decay});
}

Status Lion(const Stream& stream, const LionArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckLion(stream, args));
  return Update(stream, "Lion", args.update, LionRule{args.beta1, args.beta2});
}

Status ScheduleFreeAdamW(const Stream& stream, const ScheduleFreeArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckScheduleFreeAdamW(stream, args));
  return Update(stream, "ScheduleFreeAdamW", args.update,
                ScheduleFreeRule{
                    .beta1 = args.beta1,
                    .beta2 = args.beta2,
                    .epsilon = args.epsilon,
                    .correction = static_cast<float>(std::sqrt(Correction(args.beta2, args.step))),
                    .average_weight = args.average_weight});
}

Status Momentum(const Stream& stream, const MomentumArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMomentum(stream, args));
  return Update(stream, "Momentum", args.update, MomentumRule{args.momentum, args.nesterov});
}

}  // namespace weft::kernels::cuda
