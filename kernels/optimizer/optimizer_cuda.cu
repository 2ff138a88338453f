#include <cmath>
#include <cstdint>
#include <utility>

#include "common/rng.h"
#include "kernels/cuda/block_sum.h"
#include "kernels/cuda/four.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_table.h"
#include "kernels/cuda/vector.h"
#include "kernels/optimizer/optimizer.h"
#include "kernels/optimizer/optimizer_check.h"

namespace weft::kernels::cuda {
namespace {

// Elements of a tensor that a block updates. Part of the definition of the norms of Lars and Lamb:
// another size sums in another order.
constexpr int64_t kChunk = 16384;

// Neighbouring elements that a thread updates together (kernels/cuda/four.h).
constexpr int kTogether = 4;

struct TensorEntry {
  float* parameter;
  BFloat16* bf16_parameter;
  const float* gradient;
  UpdateState state[3];
  int64_t count;
  int64_t first_element;
  int first_chunk;
  float rate_scale;
  float weight_decay;
  uint32_t rounding_site;
  bool layer_rate;
  bool aligned;
};

struct UpdateTable : TensorTable<TensorEntry> {
  float gradient_scale;
  float gradient_limit;
  StepValue<float> learning_rate;
  uint64_t seed;
  StepValue<uint32_t> step;
  UpdateGate gate;

  __device__ float RateOf(const TensorEntry& tensor) const {
    return learning_rate.Get() * tensor.rate_scale;
  }
};

// All rules keep f32 numbers.
__device__ __forceinline__ float* Numbers(const UpdateState& state) {
  return static_cast<float*>(state.data);
}

// What a rule sees of an element, and may change except the gradient.
struct Element {
  float gradient;
  float parameter;
  float state[3];
};

// What a rule reads and writes.
struct Access {
  int states = 0;  ///< That it reads.
  bool gradient = true;
  bool changes_states = true;
  bool changes_parameter = true;
  bool measures = false;  ///< Returns the direction whose norm is wanted, besides the parameter's.
};

// One pass over all tensors of the table: a rule has
//   static constexpr Access kAccess;
//   __device__ void operator()(Element& e, float rate, float weight_decay) const;
// where one that measures returns a float, and gets its squares and the parameter's summed up by
// chunk in `squares`. Begin(), where it has that, is called before. Rates are the table's where
// `rates` is nullptr.
template <class Rule>
__global__ void __launch_bounds__(kBlockThreads)
    UpdateKernel(const __grid_constant__ UpdateTable table, Rule rule, const float* rates,
                 double* squares) {
  constexpr Access kAccess = Rule::kAccess;
  if (table.gate.made != nullptr && *table.gate.made == 0) return;
  float gradient_scale = table.gradient_scale;
  if (table.gate.factor != nullptr) gradient_scale *= *table.gate.factor;
  if constexpr (requires { rule.Begin(); }) rule.Begin();
  const uint32_t step = table.step.Get();
  const int index = table.Find(static_cast<int>(blockIdx.x));
  const TensorEntry& t = table.tensors[index];
  const float rate = rates != nullptr ? rates[index] : table.RateOf(t);
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) - t.first_chunk) * kChunk;
  const int64_t end = begin + kChunk < t.count ? begin + kChunk : t.count;
  [[maybe_unused]] double sums[2] = {0, 0};
  for (int64_t i = begin + int64_t{threadIdx.x} * kTogether; i < end;
       i += int64_t{kBlockThreads} * kTogether) {
    const int count = end - i < kTogether ? static_cast<int>(end - i) : kTogether;
    const bool wide = t.aligned && count == kTogether;
    float p[kTogether], g[kTogether] = {}, s[3][kTogether];
    if (t.bf16_parameter != nullptr) {
      LoadFour(t.bf16_parameter + i, count, wide, p);
    } else {
      LoadFour(t.parameter + i, count, wide, p);
    }
    if constexpr (kAccess.gradient) LoadFour(t.gradient + i, count, wide, g);
#pragma unroll
    for (int k = 0; k < kAccess.states; ++k) LoadFour(Numbers(t.state[k]) + i, count, wide, s[k]);
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      Element e;
      // Comparisons keep a NaN, which fminf and fmaxf would lose.
      e.gradient = g[k] * gradient_scale;
      if (e.gradient > table.gradient_limit) e.gradient = table.gradient_limit;
      if (e.gradient < -table.gradient_limit) e.gradient = -table.gradient_limit;
      e.parameter = p[k];
#pragma unroll
      for (int j = 0; j < kAccess.states; ++j) e.state[j] = s[j][k];
      if constexpr (kAccess.measures) {
        const double direction = rule(e, rate, t.weight_decay), parameter = p[k];
        if (k < count) {
          sums[0] += parameter * parameter;
          sums[1] += direction * direction;
        }
      } else {
        rule(e, rate, t.weight_decay);
      }
      p[k] = e.parameter;
#pragma unroll
      for (int j = 0; j < kAccess.states; ++j) s[j][k] = e.state[j];
    }
    if constexpr (kAccess.changes_states) {
#pragma unroll
      for (int k = 0; k < kAccess.states; ++k) {
        StoreFour(Numbers(t.state[k]) + i, count, wide, s[k]);
      }
    }
    if constexpr (kAccess.changes_parameter) {
      if (t.bf16_parameter != nullptr) {
        const PhiloxKey key = {table.seed, step, t.rounding_site};
        RoundFour(t.bf16_parameter + i, count, wide, p, key, t.first_element + i);
      } else {
        StoreFour(t.parameter + i, count, wide, p);
      }
    }
  }
  if constexpr (kAccess.measures) {
    BlockSum(sums);
    if (threadIdx.x == 0) {
      squares[2 * static_cast<int64_t>(blockIdx.x)] = sums[0];
      squares[2 * static_cast<int64_t>(blockIdx.x) + 1] = sums[1];
    }
  }
}

// Calls launch(table, its chunks) until it has had all tensors.
template <class Fn>
Status ForEachTable(const UpdateInputs& update, Fn&& launch) {
  UpdateTable table;
  table.gradient_scale = update.gradient_scale;
  table.gradient_limit = update.gradient_limit;
  table.learning_rate = update.learning_rate;
  table.seed = update.seed;
  table.step = update.step;
  table.gate = update.gate;
  int chunks = 0;
  for (const UpdateTensor& tensor : update.tensors) {
    if (tensor.count == 0) continue;
    if (table.count == UpdateTable::kMostTensors) {
      WEFT_RETURN_IF_ERROR(launch(table, chunks));
      table.count = chunks = 0;
    }
    table.tensors[table.count++] = {
        .parameter = tensor.parameter,
        .bf16_parameter = tensor.bf16_parameter,
        .gradient = tensor.gradient,
        .state = {tensor.state[0], tensor.state[1], tensor.state[2]},
        .count = tensor.count,
        .first_element = tensor.first_element,
        .first_chunk = chunks,
        .rate_scale = tensor.learning_rate_scale,
        .weight_decay = tensor.weight_decay,
        .rounding_site = tensor.rounding_site,
        .layer_rate = tensor.layer_rate,
        .aligned = Aligned16(tensor.parameter, tensor.bf16_parameter, tensor.gradient,
                             tensor.state[0].data, tensor.state[1].data, tensor.state[2].data)};
    chunks += static_cast<int>(CeilDiv(tensor.count, kChunk));
  }
  return launch(table, chunks);
}

template <class Rule>
Status LaunchUpdate(const Stream& stream, std::string_view op, const UpdateTable& table, int chunks,
                    const Rule& rule, const float* rates, double* squares) {
  return Launch(stream, op, {.grid = {static_cast<unsigned>(chunks)}, .block = {kBlockThreads}},
                UpdateKernel<Rule>, table, rule, rates, squares);
}

template <class Rule>
Status Update(const Stream& stream, std::string_view op, const UpdateInputs& update,
              const Rule& rule) {
  return ForEachTable(update, [&](const UpdateTable& table, int chunks) {
    return LaunchUpdate(stream, op, table, chunks, rule, nullptr, nullptr);
  });
}

// The rates of the table's tensors, a block each: with a factor by the norms of the parameter and
// of the direction where both have one, given as
//   __device__ double operator()(double parameter, double direction, float weight_decay) const
template <class Factor>
__global__ void __launch_bounds__(kBlockThreads)
    LayerRateKernel(const __grid_constant__ UpdateTable table, int chunks, const double* squares,
                    const Factor factor, float* rates) {
  const int index = static_cast<int>(blockIdx.x);
  const TensorEntry& t = table.tensors[index];
  const int end = index + 1 < table.count ? table.tensors[index + 1].first_chunk : chunks;
  double sums[2] = {0, 0};
  for (int64_t c = int64_t{t.first_chunk} + threadIdx.x; c < end; c += kBlockThreads) {
    sums[0] += squares[2 * c];
    sums[1] += squares[2 * c + 1];
  }
  BlockSum(sums);
  if (threadIdx.x != 0) return;
  const double parameter = sqrt(sums[0]), direction = sqrt(sums[1]);
  const bool adapts = t.layer_rate && parameter > 0 && direction > 0;
  const double layer_rate = adapts ? factor(parameter, direction, t.weight_decay) : 1.0;
  rates[index] = static_cast<float>(table.RateOf(t) * layer_rate);
}

// An update whose rates depend on norms: `measure` finds them, in a pass of its own.
template <class Measure, class Factor, class Rule>
Status UpdateByLayer(const Stream& stream, std::string_view op, const UpdateInputs& update,
                     const Measure& measure, const Factor& factor, const Rule& rule) {
  int64_t most_chunks = 0;
  for (const UpdateTensor& tensor : update.tensors) most_chunks += CeilDiv(tensor.count, kChunk);
  WEFT_ASSIGN_OR_RETURN(double* squares,
                        ScratchOf<double>(stream, op, 2 * most_chunks + UpdateTable::kMostTensors));
  auto* rates = reinterpret_cast<float*>(squares + 2 * most_chunks);
  return ForEachTable(update, [&](const UpdateTable& table, int chunks) -> Status {
    WEFT_RETURN_IF_ERROR(LaunchUpdate(stream, op, table, chunks, measure, nullptr, squares));
    WEFT_RETURN_IF_ERROR(
        Launch(stream, op, {.grid = {static_cast<unsigned>(table.count)}, .block = {kBlockThreads}},
               LayerRateKernel<Factor>, table, chunks, squares, factor, rates));
    return LaunchUpdate(stream, op, table, chunks, rule, rates, nullptr);
  });
}

template <bool kMomentum>
struct SgdRule {
  static constexpr Access kAccess = {.states = kMomentum ? 1 : 0};
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

// The norm of the gradient.
struct LarsMeasure {
  static constexpr Access kAccess = {.states = 0, .changes_parameter = false, .measures = true};

  __device__ float operator()(Element& e, float, float) const { return e.gradient; }
};

struct LarsFactor {
  float trust_coefficient;
  float epsilon;

  __device__ double operator()(double parameter, double gradient, float weight_decay) const {
    return trust_coefficient * parameter / (gradient + weight_decay * parameter + epsilon);
  }
};

struct LarsRule {
  static constexpr Access kAccess = {.states = 1};
  float momentum;

  __device__ void operator()(Element& e, float rate, float weight_decay) const {
    e.state[0] = e.state[0] * momentum + (e.gradient + e.parameter * weight_decay) * rate;
    e.parameter -= e.state[0];
  }
};

// 1 - beta^step, as accurate as f32 where it is near 0.
struct Correction {
  float log_beta;
  StepValue<int64_t> step;

  static Correction Of(float beta, const StepValue<int64_t>& step) {
    return {static_cast<float>(std::log(static_cast<double>(beta))), step};
  }
  __device__ float Get() const { return -expm1f(static_cast<float>(step.Get()) * log_beta); }
};

// What makes means of moments.
struct MomentScales {
  Correction of_mean;
  Correction of_variance;
  float mean;      ///< 1 / (1 - beta1^step)
  float variance;  ///< 1 / sqrt(1 - beta2^step)

  static MomentScales Of(float beta1, float beta2, const StepValue<int64_t>& step) {
    return {Correction::Of(beta1, step), Correction::Of(beta2, step), 0, 0};
  }
  __device__ void Begin() {
    mean = 1.0f / of_mean.Get();
    variance = 1.0f / sqrtf(of_variance.Get());
  }
};

struct AdamRule {
  static constexpr Access kAccess = {.states = 2};
  float beta1;
  float beta2;
  float epsilon;
  bool decoupled;
  MomentScales scales;

  __device__ void Begin() { scales.Begin(); }

  __device__ void operator()(Element& e, float rate, float weight_decay) const {
    const float g = decoupled ? e.gradient : e.gradient + e.parameter * weight_decay;
    float &m = e.state[0], &v = e.state[1];
    m = (m - g) * beta1 + g;
    v = (v - g * g) * beta2 + g * g;
    if (decoupled) e.parameter *= 1.0f - rate * weight_decay;
    e.parameter -= m * (rate * scales.mean) / (sqrtf(v) * scales.variance + epsilon);
  }
};

/// With second moments that stay as they are.
struct AdamKeptRule {
  static constexpr Access kAccess = {.states = 2};
  AdamRule adam;

  __device__ void Begin() { adam.Begin(); }

  __device__ void operator()(Element& e, float rate, float weight_decay) const {
    const float g = adam.decoupled ? e.gradient : e.gradient + e.parameter * weight_decay;
    float& m = e.state[0];
    const float v = e.state[1];
    m = (m - g) * adam.beta1 + g;
    if (adam.decoupled) e.parameter *= 1.0f - rate * weight_decay;
    e.parameter -= m * (rate * adam.scales.mean) / (sqrtf(v) * adam.scales.variance + adam.epsilon);
  }
};

struct LambMoments {
  float beta1;
  float beta2;
  float epsilon;
  MomentScales scales;

  __device__ void Update(Element& e) const {
    const float g = e.gradient;
    float &m = e.state[0], &v = e.state[1];
    m = (m - g) * beta1 + g;
    v = (v - g * g) * beta2 + g * g;
  }
  __device__ float Direction(const Element& e, float weight_decay) const {
    return e.state[0] * scales.mean / (sqrtf(e.state[1]) * scales.variance + epsilon) +
           weight_decay * e.parameter;
  }
};

// The moments, and the norm of the direction.
struct LambMeasure {
  static constexpr Access kAccess = {.states = 2, .changes_parameter = false, .measures = true};
  LambMoments moments;

  __device__ void Begin() { moments.scales.Begin(); }

  __device__ float operator()(Element& e, float, float weight_decay) const {
    moments.Update(e);
    return moments.Direction(e, weight_decay);
  }
};

struct LambFactor {
  __device__ double operator()(double parameter, double direction, float) const {
    return parameter / direction;
  }
};

// The step, with the direction made again of the moments.
struct LambRule {
  static constexpr Access kAccess = {.states = 2, .gradient = false, .changes_states = false};
  LambMoments moments;

  __device__ void Begin() { moments.scales.Begin(); }

  __device__ void operator()(Element& e, float rate, float weight_decay) const {
    e.parameter -= moments.Direction(e, weight_decay) * rate;
  }
};

struct LionRule {
  static constexpr Access kAccess = {.states = 1};
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
  static constexpr Access kAccess = {.states = 3};
  float beta1;
  float beta2;
  float epsilon;
  float average_weight;
  Correction of_variance;
  float correction;  ///< sqrt(1 - beta2^step)

  __device__ void Begin() { correction = sqrtf(of_variance.Get()); }

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
  static constexpr Access kAccess = {.states = 2, .changes_parameter = false};
  float momentum;
  bool nesterov;

  __device__ void operator()(Element& e, float, float) const {
    const float g = e.gradient, m = (e.state[0] - g) * momentum + g;
    e.state[0] = m;
    e.state[1] = nesterov ? (m - g) * momentum + g : m;
  }
};

}  // namespace

Status Sgd(const Stream& stream, const SgdArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckSgd(stream, args));
  if (args.momentum == 0) return Update(stream, "Sgd", args.update, SgdRule<false>{});
  return Update(stream, "Sgd", args.update, SgdRule<true>{args.momentum, args.nesterov});
}

Status Lars(const Stream& stream, const LarsArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckLars(stream, args));
  return UpdateByLayer(stream, "Lars", args.update, LarsMeasure{},
                       LarsFactor{args.trust_coefficient, args.epsilon}, LarsRule{args.momentum});
}

Status Adam(const Stream& stream, const AdamArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckAdam(stream, args));
  const AdamRule rule = {.beta1 = args.beta1,
                         .beta2 = args.beta2,
                         .epsilon = args.epsilon,
                         .decoupled = args.decoupled_decay,
                         .scales = MomentScales::Of(args.beta1, args.beta2, args.step)};
  if (args.keeps_second_moments) return Update(stream, "Adam", args.update, AdamKeptRule{rule});
  return Update(stream, "Adam", args.update, rule);
}

Status Lamb(const Stream& stream, const LambArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckLamb(stream, args));
  const LambMoments moments = {.beta1 = args.beta1,
                               .beta2 = args.beta2,
                               .epsilon = args.epsilon,
                               .scales = MomentScales::Of(args.beta1, args.beta2, args.step)};
  return UpdateByLayer(stream, "Lamb", args.update, LambMeasure{moments}, LambFactor{},
                       LambRule{moments});
}

Status Lion(const Stream& stream, const LionArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckLion(stream, args));
  return Update(stream, "Lion", args.update, LionRule{args.beta1, args.beta2});
}

Status ScheduleFreeAdamW(const Stream& stream, const ScheduleFreeArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckScheduleFreeAdamW(stream, args));
  return Update(stream, "ScheduleFreeAdamW", args.update,
                ScheduleFreeRule{.beta1 = args.beta1,
                                 .beta2 = args.beta2,
                                 .epsilon = args.epsilon,
                                 .average_weight = args.average_weight,
                                 .of_variance = Correction::Of(args.beta2, args.step),
                                 .correction = 0});
}

Status Momentum(const Stream& stream, const MomentumArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMomentum(stream, args));
  return Update(stream, "Momentum", args.update, MomentumRule{args.momentum, args.nesterov});
}

}  // namespace weft::kernels::cuda
