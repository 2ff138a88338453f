#pragma once

#include <optional>
#include <string>
#include <utility>

#include "worker/engine/autograd/tape.h"
#include "worker/engine/nn/norm.h"

namespace weft::engine {

/// stream + delta as one value.
Result<Value> Sum(Context& context, Tape& tape, const Residual& x);

/// Where the norm of a residual branch stands.
enum class NormPosition : uint8_t {
  kPre,   ///< x + f(norm(x)) (Xiong et al. 2020, arXiv 2002.04745).
  kPost,  ///< norm(x + f(x)) (Vaswani et al. 2017, arXiv 1706.03762).
  kNone,  ///< x + f(x).
};

/// Of "pre", "post" or "none".
NormPosition NormPositionNamed(const std::string& name);

/// A residual connection around a sub-layer, with its norm.
class ResidualBranch {
 public:
  ResidualBranch(ParameterSet* parameters, const NormOptions& norm, NormPosition position);

  /// `sub_layer` is Result<Value>(const Value&). After a post-norm the result is one value.
  template <class SubLayer>
  Result<Residual> Forward(Context& context, Tape& tape, const Residual& x,
                           SubLayer&& sub_layer) const {
    if (position_ == NormPosition::kPre) {
      WEFT_ASSIGN_OR_RETURN(Norm::Output in, norm_->Forward(context, tape, x));
      WEFT_ASSIGN_OR_RETURN(Value delta, sub_layer(in.normalized));
      return Residual{std::move(in.stream), std::move(delta)};
    }
    WEFT_ASSIGN_OR_RETURN(Value in, Sum(context, tape, x));
    WEFT_ASSIGN_OR_RETURN(Value delta, sub_layer(in));
    if (position_ == NormPosition::kNone) return Residual{std::move(in), std::move(delta)};
    WEFT_ASSIGN_OR_RETURN(Norm::Output out,
                          norm_->Forward(context, tape, {std::move(in), std::move(delta)}));
    return Residual{std::move(out.normalized), {}};
  }

 private:
  NormPosition position_;
  std::optional<Norm> norm_;
};

}  // namespace weft::engine
