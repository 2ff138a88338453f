#include "worker/engine/nn/residual.h"

#include <memory>
#include <utility>

#include "worker/engine/autograd/add.h"
#include "worker/engine/nn/affine.h"
#include "worker/engine/nn/parameter_set.h"

namespace weft::engine {
namespace {

// Trained numbers that a branch is multiplied by: x + scale * f(x), with fixup x + scale *
// f(x + input_shift) + shift. Their names are those of what ends the branch, with ".scale" and so
// on.
void PutBranchScale(const GraftSite& site, BranchScaling scaling, Grafts& grafts) {
  ParameterSet* const parameters = site.parameters;
  const ParameterRole role = site.sub_layer == SubLayer::kAttention ? ParameterRole::kAttentionScale
                                                                    : ParameterRole::kMlpScale;
  const auto add = [&](const char* what, int64_t size, bool shifts) {
    return parameters->Register(site.name + what, {size}, role, {.bias = shifts});
  };
  const bool fixup = scaling == BranchScaling::kFixup;
  if (fixup) {
    grafts.Put(GraftPlace::kSubLayerInput,
               std::make_unique<Affine>(parameters, -1, add(".input_shift", 1, true)));
  }
  const int64_t size = scaling == BranchScaling::kVector ? site.width : 1;
  const int64_t factor = add(".scale", size, false);
  const int64_t shift = fixup ? add(".shift", 1, true) : -1;
  grafts.Put(GraftPlace::kResidualBranch, std::make_unique<Affine>(parameters, factor, shift));
}

}  // namespace

Result<Value> Sum(Context& context, Tape& tape, const Residual& x) {
  if (!x.delta.tensor) return x.stream;
  return Add(context, tape, x.stream, x.delta);
}

NormPosition NormPositionNamed(const std::string& name) {
  if (name == "post") return NormPosition::kPost;
  return name == "none" ? NormPosition::kNone : NormPosition::kPre;
}

ResidualBranch::ResidualBranch(const GraftSite& site, const NormOptions& norm,
                               NormPosition position, BranchScaling scaling, const Grafter& grafter)
    : begin_parameter_(site.parameters->size()),
      first_skipped_(begin_parameter_),
      position_(position) {
  if (position != NormPosition::kNone) norm_.emplace(site.parameters, norm);
  if (position == NormPosition::kPost) first_skipped_ = site.parameters->size();
  if (scaling != BranchScaling::kNone) PutBranchScale(site, scaling, grafts_);
  if (grafter) grafter(site, grafts_);
}

Result<Residual> ResidualBranch::AddOfSum(Context& context, Tape& tape, Residual x,
                                          const GraftUse& use, float scale) const {
  if (!grafts_.Has(GraftPlace::kResidualSum)) return x;
  Value sum, read;
  if (position_ == NormPosition::kPost) {
    WEFT_ASSIGN_OR_RETURN(Norm::Output out, norm_->Forward(context, tape, x));
    sum = std::move(out.stream);
    read = std::move(out.normalized);
  } else {
    WEFT_ASSIGN_OR_RETURN(sum, Sum(context, tape, x));
    read = sum;
  }
  x = {};
  WEFT_ASSIGN_OR_RETURN(
      Value made, grafts_.Forward(GraftPlace::kResidualSum, context, tape, std::move(read), use));
  if (scale != 1) {
    WEFT_ASSIGN_OR_RETURN(made, Scale(context, tape, std::move(made), scale));
  }
  return Residual{std::move(sum), std::move(made)};
}

Residual ResidualBranch::Skip(Tape& tape, Residual x) const {
  bool trains = false;
  for (int64_t i = first_skipped_; i < end_parameter_; ++i) trains = trains || tape.Trains(i);
  const bool passes = x.stream.needs_gradient() || x.delta.needs_gradient();
  if (!passes && !trains) return x;
  int32_t ends = Value::kNoNode;
  if (!passes) {
    x.stream = tape.NewValue(std::move(x.stream.tensor), true);
    ends = x.stream.node;
  }
  for (int64_t i = first_skipped_; i < end_parameter_; ++i) tape.UseParameter(i);
  if (!tape.recording()) return x;
  tape.Record("skipped branch", [this, ends](Context& context, Tape& t) -> Status {
    if (ends != Value::kNoNode) (void)t.TakeGradient(ends);
    const auto skip = [this](Context& c, Tape& of) -> Status {
      for (int64_t i = end_parameter_; i-- > first_skipped_;) {
        WEFT_RETURN_IF_ERROR(of.parameters().Skip(c, i));
      }
      return OkStatus();
    };
    if (!t.defers()) return skip(context, t);
    t.Defer("skipped branch", skip);
    return OkStatus();
  });
  return x;
}

}  // namespace weft::engine
