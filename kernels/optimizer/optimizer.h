#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>

#include "kernels/step_value.h"
#include "kernels/stream.h"
#include "kernels/tensor_view.h"

namespace weft::kernels {

/// What a rule keeps of a tensor, a number for each element. Rules refuse all but f32.
struct UpdateState {
  UpdateState() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): f32 numbers say all
  UpdateState(float* numbers) : data(numbers) {}
  // NOLINTNEXTLINE(google-explicit-constructor): as a view of them does
  UpdateState(const TensorView& view) : data(view.data), dtype(view.dtype) {}

  float* f32() const {
    WEFT_CHECK(dtype == DType::kF32, "state read as another type");
    return static_cast<float*>(data);
  }

  void* data = nullptr;
  DType dtype = DType::kF32;
};

/// One parameter tensor of a multi-tensor update: `count` elements, f32 except the parameter,
/// which may be bf16. It is then updated in f32 and rounded stochastically
/// (kernels/stochastic_round) with the stream of UpdateInputs::seed and step and the tensor's
/// `rounding_site`.
struct UpdateTensor {
  float* parameter = nullptr;          ///< This one or ...
  BFloat16* bf16_parameter = nullptr;  ///< ... this one.
  const float* gradient = nullptr;
  std::array<UpdateState, 3> state = {};  ///< What the rule keeps, as its contract names it.
  int64_t count = 0;
  float learning_rate_scale = 1;  ///< Factor on UpdateInputs::learning_rate.
  float weight_decay = 0;
  uint32_t rounding_site = 0;
  int64_t first_element = 0;  ///< Where a part begins in its tensor, for rounding.
  bool layer_rate = true;     ///< Lars and Lamb: has a rate of its own by its norm.
};

/// What is known of an update only where its gradients are, in memory of the stream's device
/// (kernels/step_totals): so the host need not wait for them before it enqueues the update.
struct UpdateGate {
  const float* factor = nullptr;  ///< A further one on gradient_scale; none: 1.
  const int32_t* made = nullptr;  ///< Zero leaves all memory as it is; none: the update is made.
};

/// What every update rule receives. The gradient g of the rules below is
///   clamp(gradient_scale * gradient, -gradient_limit, gradient_limit),
/// lr is learning_rate * learning_rate_scale, and wd the tensor's weight_decay.
struct UpdateInputs {
  std::span<const UpdateTensor> tensors = {};
  StepValue<float> learning_rate = 0.0f;
  float gradient_scale = 1.0f;  ///< Clipping factor and averaging, applied on the fly.
  float gradient_limit = std::numeric_limits<float>::infinity();
  uint64_t seed = 0;              ///< Of the rounding of bf16 parameters.
  StepValue<uint32_t> step = 0u;  ///< Likewise.
  UpdateGate gate = {};
};

// Each operation is one pass over all tensors (Lars and Lamb, which need norms, make two), the same
// for any number of threads. Sgd, Adam, Lion and ScheduleFreeAdamW treat elements one by one: an
// update of a part of a tensor gives the same bits as of the whole.

/// Stochastic gradient descent as PyTorch has it; keeps b when momentum is not 0:
///   g += wd p;  b = momentum b + g;  p -= lr (nesterov ? g + momentum b : b)
struct SgdArgs {
  UpdateInputs update = {};
  float momentum = 0;
  bool nesterov = false;
};

/// LARS (You et al. 2017, arXiv 1708.03888); keeps b. Tensors without layer_rate have l = 1.
///   l = trust_coefficient |p| / (|g| + wd |p| + epsilon), 1 where |p| or |g| is 0
///   b = momentum b + lr l (g + wd p);  p -= b
struct LarsArgs {
  UpdateInputs update = {};
  float momentum = 0.9f;
  float trust_coefficient = 0.001f;
  float epsilon = 1e-8f;
};

/// Adam (Kingma and Ba 2015, arXiv 1412.6980), or AdamW (Loshchilov and Hutter 2019, arXiv
/// 1711.05101) when decay is decoupled; keeps m and v:
///   decoupled: p -= lr wd p, otherwise g += wd p
///   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
///   p -= lr (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + epsilon)
/// With keeps_second_moments v stays as it is.
struct AdamArgs {
  UpdateInputs update = {};
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  StepValue<int64_t> step = int64_t{1};  ///< 1 for the first update.
  bool decoupled_decay = true;
  bool keeps_second_moments = false;
};

/// LAMB (You et al. 2020, arXiv 1904.00962), Algorithm 2 with the identity as phi; keeps m and v as
/// Adam does. Tensors without layer_rate have l = 1.
///   r = (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + epsilon) + wd p
///   l = |p| / |r|, 1 where either is 0;  p -= lr l r
struct LambArgs {
  UpdateInputs update = {};
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-6f;
  StepValue<int64_t> step = int64_t{1};
};

/// Lion (Chen et al. 2023, arXiv 2302.06675), Algorithm 2; keeps m:
///   p -= lr (sign(beta1 m + (1 - beta1) g) + wd p);  m = beta2 m + (1 - beta2) g
struct LionArgs {
  UpdateInputs update = {};
  float beta1 = 0.9f;
  float beta2 = 0.99f;
};

/// AdamW without a schedule (Defazio et al. 2024, arXiv 2405.15682), Algorithm 1. The parameter is
/// the point y where gradients are taken; keeps x (the average, which is what training yields), z
/// and v:
///   v = beta2 v + (1 - beta2) g^2;  rate = lr sqrt(1 - beta2^step)
///   z -= rate (g / (sqrt(v) + epsilon) + wd y)
///   x += average_weight (z - x);  y = z + beta1 (x - z)
struct ScheduleFreeArgs {
  UpdateInputs update = {};
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  StepValue<int64_t> step = int64_t{1};
  float average_weight = 1;  ///< Of the newest z, in [0, 1]: 1 for the first update.
};

/// The direction of Muon before it is orthogonalized (Jordan et al. 2024); keeps m, writes it into
/// the second state, and leaves the parameter alone:
///   m = momentum m + (1 - momentum) g;  direction = nesterov ? (1 - momentum) g + momentum m : m
struct MomentumArgs {
  UpdateInputs update = {};
  float momentum = 0.95f;
  bool nesterov = true;
};

WEFT_DEVICE_OP(Sgd, SgdArgs)
WEFT_DEVICE_OP(Lars, LarsArgs)
WEFT_DEVICE_OP(Adam, AdamArgs)
WEFT_DEVICE_OP(Lamb, LambArgs)
WEFT_DEVICE_OP(Lion, LionArgs)
WEFT_DEVICE_OP(ScheduleFreeAdamW, ScheduleFreeArgs)
WEFT_DEVICE_OP(Momentum, MomentumArgs)

}  // namespace weft::kernels
