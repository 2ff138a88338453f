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
                               NormPosition position)
    : position_(position) {
  if (position != NormPosition::kNone) norm_.emplace(parameters, norm);
}

}  // namespace weft::engine
