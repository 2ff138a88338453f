#pragma once

namespace weft::kernels {

// GELU, tanh form: x times the sigmoid of kTwoSqrtTwoOverPi (x + kGeluCubic x^3).
inline constexpr float kTwoSqrtTwoOverPi = 1.5957691216f;
inline constexpr float kGeluCubic = 0.044715f;

// GELU, exact form: with t = 1 / (1 + kNormalTailScale |x|), the tail of the normal distribution
// beyond |x| is e^(-x^2/2) t times the polynomial in t with these coefficients: the minimax one
// of relative error 1.5e-7 up to |x| = 14, where the tail is 0 in f32.
inline constexpr float kInverseSqrtTwoPi = 0.39894228f;
inline constexpr float kNormalTailScale = 0.3f;
inline constexpr float kNormalTail7 = 0.035674875750978934f;
inline constexpr float kNormalTail6 = -0.15720349516175355f;
inline constexpr float kNormalTail5 = 0.20635418945786196f;
inline constexpr float kNormalTail4 = -0.0536842405394135f;
inline constexpr float kNormalTail3 = 0.12856192192003693f;
inline constexpr float kNormalTail2 = 0.09991340935540315f;
inline constexpr float kNormalTail1 = 0.12075396816675235f;
inline constexpr float kNormalTail0 = 0.11962929811096386f;

}  // namespace weft::kernels
