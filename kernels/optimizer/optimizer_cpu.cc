#include "kernels/optimizer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/parallel.h"
#include "kernels/elementwise/elementwise_simd.h"
#include "kernels/norm_stat/norm_stat_simd.h"
#include "kernels/optimizer/optimizer_check.h"
#include "kernels/optimizer/optimizer_simd.h"
#include "kernels/stochastic_round/stochastic_round_simd.h"

namespace weft::kernels::cpu {
namespace {

// Elements of a unit of work: 448 KiB of traffic. Part of the definition of the norms of Lars and
// Lamb: another size sums in another order.
constexpr int64_t kBlock = 16384;

GradientFactors FactorsOf(const UpdateInputs& update) {
  const float* factor = update.gate.factor;
  return {factor == nullptr ? update.gradient_scale : update.gradient_scale * *factor,
          update.gradient_limit};
}

bool IsMade(const UpdateInputs& update) {
  return update.gate.made == nullptr || *update.gate.made != 0;
}

float RateOf(const UpdateInputs& update, const UpdateTensor& tensor) {
  return update.learning_rate.Get() * tensor.learning_rate_scale;
}

/// 1 - beta^step
double Correction(float beta, int64_t step) {
  return 1 - std::pow(static_cast<double>(beta), static_cast<double>(step));
}

/// StochasticRound of a part that begins at any element. Philox makes four words at a time: those
/// before the first whole four go by themselves.
void RoundPart(const PhiloxKey& key, uint64_t first, const float* x, BFloat16* y, int64_t count) {
  const auto run = PickStochasticRoundKernels().run;
  if (const auto past = static_cast<int64_t>(first % 4); past > 0) {
    float four[4] = {};
    BFloat16 rounded[4];
    const int64_t head = std::min(4 - past, count);
    std::copy_n(x, head, four + past);
    run(key, first / 4, four, rounded, 4);
    std::copy_n(rounded + past, head, y);
    first += static_cast<uint64_t>(head);
    x += head;
    y += head;
    count -= head;
  }
  run(key, first / 4, x, y, count);
}

/// Calls fn(index of the block, the block, its tensor, its span) for all blocks in parallel. The
/// one place where parameters are read and written: those in bf16 pass through f32, and rounding
/// leaves what fn does not change as it is.
template <class Fn>
void ForEachBlock(const UpdateInputs& update, const std::vector<Block>& blocks, const Fn& fn) {
  ParallelFor(static_cast<int64_t>(blocks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const Block& block = blocks[b];
      const UpdateTensor& tensor = update.tensors[block.tensor];
      static thread_local std::vector<float> wide;
      BFloat16* narrow = tensor.bf16_parameter;
      if (narrow != nullptr) {
        narrow += block.begin;
        wide.resize(kBlock);
        PickElementwiseKernels().bf16.to_f32(narrow, wide.data(), block.count);
      }
      UpdateSpan span = {
          .parameter = narrow != nullptr ? wide.data() : tensor.parameter + block.begin,
          .gradient = tensor.gradient + block.begin,
          .state = {},
          .count = block.count};
      for (int k = 0; k < 3; ++k) {
        if (float* state = tensor.state[k].f32()) span.state[k] = state + block.begin;
      }
      fn(b, block, tensor, span);
      if (narrow != nullptr) {
        const PhiloxKey key = {update.seed, update.step.Get(), tensor.rounding_site};
        const auto first = static_cast<uint64_t>(tensor.first_element + block.begin);
        RoundPart(key, first, wide.data(), narrow, block.count);
      }
    }
  });
}

/// The norms of a tensor that a rate of its own depends on.
struct LayerNorms {
  double parameter = 0;
  double direction = 0;  ///< The gradient, or what takes its place.
};

/// Square sums by block to norms by tensor; the blocks of a tensor follow each other.
std::vector<LayerNorms> NormsByTensor(size_t tensors, const std::vector<Block>& blocks,
                                      const std::vector<LayerNorms>& squares) {
  std::vector<LayerNorms> norms(tensors);
  for (size_t b = 0; b < blocks.size(); ++b) {
    norms[blocks[b].tensor].parameter += squares[b].parameter;
    norms[blocks[b].tensor].direction += squares[b].direction;
  }
  for (LayerNorms& norm : norms) {
    norm = {std::sqrt(norm.parameter), std::sqrt(norm.direction)};
  }
  return norms;
}

double SumOfSquares(const float* x, int64_t count) {
  double sum = 0;
  int64_t non_finite = 0;
  PickNormStatKernels().block(x, count, &sum, &non_finite);
  return sum;
}

}  // namespace

Status Sgd(const Stream& stream, const SgdArgs& args) {
  const bool has_momentum = args.momentum != 0;
  WEFT_RETURN_IF_ERROR(CheckSgd(stream, args));
  if (!IsMade(args.update)) return OkStatus();
  const OptimizerKernels& kernels = PickOptimizerKernels();
  const auto kernel = has_momentum ? kernels.sgd_momentum : kernels.sgd;
  ForEachBlock(args.update, SplitIntoBlocks(args.update.tensors, kBlock),
               [&](int64_t, const Block&, const UpdateTensor& tensor, const UpdateSpan& span) {
                 kernel({.gradient = FactorsOf(args.update),
                         .l2 = tensor.weight_decay,
                         .rate_in = 1,
                         .momentum = args.momentum,
                         .nesterov = args.nesterov ? args.momentum : 0,
                         .rate_out = RateOf(args.update, tensor)},
                        span);
               });
  return OkStatus();
}

Status Lars(const Stream& stream, const LarsArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckLars(stream, args));
  if (!IsMade(args.update)) return OkStatus();
  const std::span<const UpdateTensor> tensors = args.update.tensors;
  const std::vector<Block> blocks = SplitIntoBlocks(tensors, kBlock);
  std::vector<LayerNorms> squares(blocks.size());
  ForEachBlock(args.update, blocks,
               [&](int64_t b, const Block&, const UpdateTensor& tensor, const UpdateSpan& span) {
                 if (!tensor.layer_rate) return;
                 squares[b] = {SumOfSquares(span.parameter, span.count),
                               SumOfSquares(span.gradient, span.count)};
               });
  const std::vector<LayerNorms> norms = NormsByTensor(tensors.size(), blocks, squares);
  const OptimizerKernels& kernels = PickOptimizerKernels();
  ForEachBlock(
      args.update, blocks,
      [&](int64_t, const Block& block, const UpdateTensor& tensor, const UpdateSpan& span) {
        const double p = norms[block.tensor].parameter;
        const double g = std::abs(FactorsOf(args.update).scale) * norms[block.tensor].direction;
        const double layer_rate = p > 0 && g > 0 ? args.trust_coefficient * p /
                                                       (g + tensor.weight_decay * p + args.epsilon)
                                                 : 1.0;
        kernels.sgd_momentum(
            {.gradient = FactorsOf(args.update),
             .l2 = tensor.weight_decay,
             .rate_in = static_cast<float>(RateOf(args.update, tensor) * layer_rate),
             .momentum = args.momentum,
             .nesterov = 0,
             .rate_out = 1},
            span);
      });
  return OkStatus();
}

Status Adam(const Stream& stream, const AdamArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckAdam(stream, args));
  if (!IsMade(args.update)) return OkStatus();
  const double correction1 = Correction(args.beta1, args.step.Get());
  const double correction2 = Correction(args.beta2, args.step.Get());
  const OptimizerKernels& kernels = PickOptimizerKernels();
  const auto adam = args.keeps_second_moments ? kernels.adam_kept : kernels.adam;
  ForEachBlock(args.update, SplitIntoBlocks(args.update.tensors, kBlock),
               [&](int64_t, const Block&, const UpdateTensor& tensor, const UpdateSpan& span) {
                 const float rate = RateOf(args.update, tensor);
                 const bool decoupled = args.decoupled_decay;
                 adam({.gradient = FactorsOf(args.update),
                       .beta1 = args.beta1,
                       .beta2 = args.beta2,
                       .l2 = decoupled ? 0 : tensor.weight_decay,
                       .decay = decoupled ? 1 - rate * tensor.weight_decay : 1,
                       .mean_scale = static_cast<float>(rate / correction1),
                       .variance_scale = static_cast<float>(1 / std::sqrt(correction2)),
                       .epsilon = args.epsilon},
                      span);
               });
  return OkStatus();
}

Status Lamb(const Stream& stream, const LambArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckLamb(stream, args));
  if (!IsMade(args.update)) return OkStatus();
  const AdamFactors shared = {
      .gradient = FactorsOf(args.update),
      .beta1 = args.beta1,
      .beta2 = args.beta2,
      .l2 = 0,
      .decay = 1,
      .mean_scale = static_cast<float>(1 / Correction(args.beta1, args.step.Get())),
      .variance_scale = static_cast<float>(1 / std::sqrt(Correction(args.beta2, args.step.Get()))),
      .epsilon = args.epsilon};
  const auto factors_of = [&shared](const UpdateTensor& tensor) {
    AdamFactors factors = shared;
    factors.l2 = tensor.weight_decay;
    return factors;
  };
  const std::span<const UpdateTensor> tensors = args.update.tensors;
  const std::vector<Block> blocks = SplitIntoBlocks(tensors, kBlock);
  std::vector<LayerNorms> squares(blocks.size());
  const OptimizerKernels& kernels = PickOptimizerKernels();
  ForEachBlock(args.update, blocks,
               [&](int64_t b, const Block&, const UpdateTensor& tensor, const UpdateSpan& span) {
                 static thread_local std::vector<float> direction(kBlock);
                 kernels.lamb_moments(factors_of(tensor), span, direction.data());
                 squares[b] = {SumOfSquares(span.parameter, span.count),
                               SumOfSquares(direction.data(), span.count)};
               });
  const std::vector<LayerNorms> norms = NormsByTensor(tensors.size(), blocks, squares);
  ForEachBlock(
      args.update, blocks,
      [&](int64_t, const Block& block, const UpdateTensor& tensor, const UpdateSpan& span) {
        const LayerNorms& norm = norms[block.tensor];
        const bool adapts = tensor.layer_rate && norm.parameter > 0 && norm.direction > 0;
        const double layer_rate = adapts ? norm.parameter / norm.direction : 1.0;
        kernels.lamb_step(factors_of(tensor), span,
                          static_cast<float>(RateOf(args.update, tensor) * layer_rate));
      });
  return OkStatus();
}

Status Lion(const Stream& stream, const LionArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckLion(stream, args));
  if (!IsMade(args.update)) return OkStatus();
  const OptimizerKernels& kernels = PickOptimizerKernels();
  ForEachBlock(args.update, SplitIntoBlocks(args.update.tensors, kBlock),
               [&](int64_t, const Block&, const UpdateTensor& tensor, const UpdateSpan& span) {
                 const float rate = RateOf(args.update, tensor);
                 kernels.lion({.gradient = FactorsOf(args.update),
                               .beta1 = args.beta1,
                               .beta2 = args.beta2,
                               .decay = 1 - rate * tensor.weight_decay,
                               .rate = rate},
                              span);
               });
  return OkStatus();
}

Status ScheduleFreeAdamW(const Stream& stream, const ScheduleFreeArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckScheduleFreeAdamW(stream, args));
  if (!IsMade(args.update)) return OkStatus();
  const double correction = std::sqrt(Correction(args.beta2, args.step.Get()));
  const OptimizerKernels& kernels = PickOptimizerKernels();
  ForEachBlock(args.update, SplitIntoBlocks(args.update.tensors, kBlock),
               [&](int64_t, const Block&, const UpdateTensor& tensor, const UpdateSpan& span) {
                 const auto rate = static_cast<float>(RateOf(args.update, tensor) * correction);
                 kernels.schedule_free({.gradient = FactorsOf(args.update),
                                        .beta1 = args.beta1,
                                        .beta2 = args.beta2,
                                        .epsilon = args.epsilon,
                                        .rate = rate,
                                        .decay = rate * tensor.weight_decay,
                                        .average_weight = args.average_weight},
                                       span);
               });
  return OkStatus();
}

Status Momentum(const Stream& stream, const MomentumArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMomentum(stream, args));
  if (!IsMade(args.update)) return OkStatus();
  const OptimizerKernels& kernels = PickOptimizerKernels();
  ForEachBlock(args.update, SplitIntoBlocks(args.update.tensors, kBlock),
               [&](int64_t, const Block&, const UpdateTensor&, const UpdateSpan& span) {
                 kernels.momentum({.gradient = FactorsOf(args.update),
                                   .momentum = args.momentum,
                                   .nesterov = args.nesterov},
                                  span);
               });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
