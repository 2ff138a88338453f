#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "common/model/model_sizes.h"
#include "worker/engine/autograd/tape.h"
#include "worker/engine/nn/affine.h"
#include "worker/engine/nn/norm.h"

namespace weft::engine {

/// stream + delta as one value.
Result<Value> Sum(Context& context, Tape& tape, const Residual& x);

/// The position of the norm of a residual branch.
enum class NormPosition : uint8_t {
  kPre,   ///< x + f(norm(x)) (Xiong et al. 2020, arXiv 2002.04745).
  kPost,  ///< norm(x + f(x)) (Vaswani et al. 2017, arXiv 1706.03762).
  kNone,  ///< x + f(x).
};

/// Reads "pre", "post" or "none".
NormPosition NormPositionNamed(const std::string& name);

/// Trained factors of a residual branch: x + scale * f(x), with fixup x + scale * f(x +
/// input_shift) + shift.
struct BranchScaleOptions {
  BranchScaling kind = BranchScaling::kNone;
  std::string name;  ///< Of what ends the branch: parameters `name`.scale and so on.
  int64_t width = 0;
};

/// A residual connection around a sub-layer, with its norm.
class ResidualBranch {
 public:
  ResidualBranch(ParameterSet* parameters, const NormOptions& norm, NormPosition position,
                 const BranchScaleOptions& scale);

  /// `sub_layer` is Result<Value>(const Value&). After a post-norm the result is one value.
  template <class SubLayer>
  Result<Residual> Forward(Context& context, Tape& tape, const Residual& x,
                           SubLayer&& sub_layer) const {
    if (position_ == NormPosition::kPre) {
      WEFT_ASSIGN_OR_RETURN(Norm::Output in, norm_->Forward(context, tape, x));
      WEFT_ASSIGN_OR_RETURN(Value delta, Run(context, tape, in.normalized, sub_layer));
      return Residual{std::move(in.stream), std::move(delta)};
    }
    WEFT_ASSIGN_OR_RETURN(Value in, Sum(context, tape, x));
    WEFT_ASSIGN_OR_RETURN(Value delta, Run(context, tape, in, sub_layer));
    if (position_ == NormPosition::kNone) return Residual{std::move(in), std::move(delta)};
    WEFT_ASSIGN_OR_RETURN(Norm::Output out,
                          norm_->Forward(context, tape, {std::move(in), std::move(delta)}));
    return Residual{std::move(out.normalized), {}};
  }

 private:
  template <class SubLayer>
  Result<Value> Run(Context& context, Tape& tape, const Value& x, SubLayer&& sub_layer) const {
    if (!scale_) return sub_layer(x);
    Value in = x;
    if (input_shift_) {
      WEFT_ASSIGN_OR_RETURN(in, input_shift_->Forward(context, tape, std::move(in)));
    }
    WEFT_ASSIGN_OR_RETURN(Value out, sub_layer(in));
    return scale_->Forward(context, tape, std::move(out));
  }

  NormPosition position_;
  std::optional<Norm> norm_;
  std::optional<Affine> input_shift_;
  std::optional<Affine> scale_;
};

}  // namespace weft::engine
