#include "worker/engine/nn/residual.h"

#include "worker/engine/autograd/add.h"

namespace weft::engine {

Result<Value> Sum(Context& context, Tape& tape, const Residual& x) {
  if (!x.delta.tensor) return x.stream;
  return Add(context, tape, x.stream, x.delta);
}

NormPosition NormPositionNamed(const std::string& name) {
  if (name == "post") return NormPosition::kPost;
  return name == "none" ? NormPosition::kNone : NormPosition::kPre;
}

ResidualBranch::ResidualBranch(ParameterSet* parameters, const NormOptions& norm,
                               NormPosition position, const BranchScaleOptions& scale)
    : position_(position) {
  if (position != NormPosition::kNone) norm_.emplace(parameters, norm);
  if (scale.kind == BranchScaling::kNone) return;
  const auto add = [&](const char* what, int64_t size, ParameterRole role) {
    return parameters->Register(scale.name + what, {size}, role);
  };
  const bool fixup = scale.kind == BranchScaling::kFixup;
  const int64_t size = scale.kind == BranchScaling::kVector ? scale.width : 1;
  if (fixup) {
    input_shift_.emplace(parameters, -1, add(".input_shift", 1, ParameterRole::kBias));
  }
  const int64_t factor = add(".scale", size, ParameterRole::kBranchScale);
  scale_.emplace(parameters, factor, fixup ? add(".shift", 1, ParameterRole::kBias) : -1);
}

}  // namespace weft::engine
