#include "kernels/optimizer/optimizer_simd.h"

#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

// What a rule sees of some neighbouring elements, and may change except the gradient.
struct Elements {
  VecF gradient;
  VecF parameter;
  VecF state[3];
};

// How many elements ahead are fetched: half a page, past whose end the processor fetches nothing.
constexpr int64_t kAhead = 512;

WEFT_INLINE float* Numbers(const UpdateState& state) {
  return static_cast<float*>(state.data);
}

// One vector of a span, or its last `count` elements. The only place that reads and writes
// parameters.
template <int kStates, class Rule>
WEFT_INLINE void UpdateVector(const GradientFactors& f, const UpdateSpan& s, int64_t i,
                              int64_t count, const Rule& rule) {
  Elements e;
  // In this order a NaN stays one.
  e.gradient = Min(Set(f.limit), Max(Set(-f.limit), LoadUpTo(s.gradient + i, count) * f.scale));
  e.parameter = LoadUpTo(s.parameter + i, count);
  for (int k = 0; k < kStates; ++k) e.state[k] = LoadUpTo(Numbers(s.state[k]) + i, count);
  rule(e, i, count);
  for (int k = 0; k < kStates; ++k) StoreUpTo(Numbers(s.state[k]) + i, e.state[k], count);
  StoreUpTo(s.parameter + i, e.parameter, count);
}

// Applies rule(elements, index of the first, how many) to a span; the rule keeps kStates states.
template <int kStates, class Rule>
WEFT_INLINE void UpdateWith(const GradientFactors& f, const UpdateSpan& s, const Rule& rule) {
  int64_t i = 0;
  for (; i + kLanes <= s.count; i += kLanes) {
    __builtin_prefetch(s.gradient + i + kAhead);
    __builtin_prefetch(s.parameter + i + kAhead);
    for (int k = 0; k < kStates; ++k) __builtin_prefetch(Numbers(s.state[k]) + i + kAhead);
    UpdateVector<kStates>(f, s, i, kLanes, rule);
  }
  if (i < s.count) UpdateVector<kStates>(f, s, i, s.count - i, rule);
}

#define WEFT_RULE [&](Elements & e, int64_t, int64_t) __attribute__((always_inline))

void Sgd(const SgdFactors& f, const UpdateSpan& span) {
  UpdateWith<0>(
      f.gradient, span,
      WEFT_RULE { e.parameter -= (e.gradient + e.parameter * f.l2) * f.rate_in * f.rate_out; });
}

void SgdMomentum(const SgdFactors& f, const UpdateSpan& span) {
  const float keep = f.nesterov != 0 ? 1.0f : 0.0f;
  const float look = f.nesterov != 0 ? f.nesterov : 1.0f;
  UpdateWith<1>(
      f.gradient, span, WEFT_RULE {
        VecF g = Fma(e.parameter, Set(f.l2), e.gradient) * f.rate_in;
        VecF b = Fma(e.state[0], Set(f.momentum), g);
        e.state[0] = b;
        e.parameter -= (b * look + g * keep) * f.rate_out;
      });
}

WEFT_INLINE void UpdateMoments(const AdamFactors& f, VecF g, VecF& m, VecF& v) {
  m = Fma(m - g, Set(f.beta1), g);
  VecF g2 = g * g;
  v = Fma(v - g2, Set(f.beta2), g2);
}

WEFT_INLINE VecF AdamDirection(const AdamFactors& f, VecF m, VecF v) {
  return m * f.mean_scale / Fma(Sqrt(v), Set(f.variance_scale), Set(f.epsilon));
}

void Adam(const AdamFactors& f, const UpdateSpan& span) {
  UpdateWith<2>(
      f.gradient, span, WEFT_RULE {
        VecF g = Fma(e.parameter, Set(f.l2), e.gradient);
        UpdateMoments(f, g, e.state[0], e.state[1]);
        e.parameter = e.parameter * f.decay - AdamDirection(f, e.state[0], e.state[1]);
      });
}

void AdamKept(const AdamFactors& f, const UpdateSpan& span) {
  UpdateWith<2>(
      f.gradient, span, WEFT_RULE {
        VecF g = Fma(e.parameter, Set(f.l2), e.gradient);
        e.state[0] = Fma(e.state[0] - g, Set(f.beta1), g);
        e.parameter = e.parameter * f.decay - AdamDirection(f, e.state[0], e.state[1]);
      });
}

WEFT_INLINE VecF LambDirection(const AdamFactors& f, const Elements& e) {
  return Fma(e.parameter, Set(f.l2), AdamDirection(f, e.state[0], e.state[1]));
}

void LambMoments(const AdamFactors& f, const UpdateSpan& span, float* direction) {
  UpdateWith<2>(
      f.gradient, span, [&](Elements & e, int64_t i, int64_t count) __attribute__((always_inline)) {
        UpdateMoments(f, e.gradient, e.state[0], e.state[1]);
        StoreUpTo(direction + i, LambDirection(f, e), count);
      });
}

void LambStep(const AdamFactors& f, const UpdateSpan& span, float rate) {
  UpdateWith<2>(
      f.gradient, span, WEFT_RULE { e.parameter -= LambDirection(f, e) * rate; });
}

void Lion(const LionFactors& f, const UpdateSpan& span) {
  UpdateWith<1>(
      f.gradient, span, WEFT_RULE {
        VecF m = e.state[0], g = e.gradient;
        VecF c = Fma(m - g, Set(f.beta1), g);
        // A true lane is -1.
        VecF sign = __builtin_convertvector((c < 0.0f) - (c > 0.0f), VecF);
        e.parameter = e.parameter * f.decay - sign * f.rate;
        e.state[0] = Fma(m - g, Set(f.beta2), g);
      });
}

void ScheduleFree(const ScheduleFreeFactors& f, const UpdateSpan& span) {
  UpdateWith<3>(
      f.gradient, span, WEFT_RULE {
        VecF x = e.state[0], z = e.state[1], v = e.state[2];
        VecF g = e.gradient, g2 = g * g;
        v = Fma(v - g2, Set(f.beta2), g2);
        z -= Fma(e.parameter, Set(f.decay), g * f.rate / (Sqrt(v) + f.epsilon));
        x = Fma(z - x, Set(f.average_weight), x);
        e.state[0] = x;
        e.state[1] = z;
        e.state[2] = v;
        e.parameter = Fma(x - z, Set(f.beta1), z);
      });
}

void Momentum(const MomentumFactors& f, const UpdateSpan& span) {
  UpdateWith<2>(
      f.gradient, span, WEFT_RULE {
        VecF g = e.gradient, m = Fma(e.state[0] - g, Set(f.momentum), g);
        e.state[0] = m;
        e.state[1] = f.nesterov ? Fma(m - g, Set(f.momentum), g) : m;
      });
}

}  // namespace

const OptimizerKernels kOptimizerKernels = {
    .sgd = Sgd,
    .sgd_momentum = SgdMomentum,
    .adam = Adam,
    .adam_kept = AdamKept,
    .lamb_moments = LambMoments,
    .lamb_step = LambStep,
    .lion = Lion,
    .schedule_free = ScheduleFree,
    .momentum = Momentum,
};

}  // namespace weft::kernels::cpu::WEFT_ISA
