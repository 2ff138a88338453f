#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "common/model/model_sizes.h"
#include "worker/engine/autograd/add.h"
#include "worker/engine/autograd/scale.h"
#include "worker/engine/autograd/tape.h"
#include "worker/engine/nn/graft.h"
#include "worker/engine/nn/norm.h"
#include "worker/engine/nn/rows.h"
#include "worker/engine/nn/token_batch.h"

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

/// A residual connection around a sub-layer, with its norm.
class ResidualBranch {
 public:
  /// Registers the norm, then puts the grafts of `site`: first the trained scale of the branch,
  /// then what `grafter`, which may be none, has.
  ResidualBranch(const GraftSite& site, const NormOptions& norm, NormPosition position,
                 BranchScaling scaling, const Grafter& grafter);

  Status Pack(Context& context, Repack what) { return grafts_.Pack(context, what); }

  /// The virtual tokens of its attention, or none.
  const VirtualTokens* virtual_tokens() const { return grafts_.virtual_tokens(); }

  /// The share of the block that it ends (Grafts::SetBlockShare).
  float block_share() const { return grafts_.block_share(); }

  /// Index of the first parameter that is registered from here on.
  int64_t begin_parameter() const { return begin_parameter_; }
  /// The parameters of the sub-layer end before `end`.
  void EndParameters(int64_t end) { end_parameter_ = end; }

  /// `sub_layer` is Result<Value>(const Value&, const TokenBatch&). After a post-norm the result is
  /// one value. Where the gate skips the branch there is no work but that of a post-norm; where it
  /// picks sequences, the branch is computed for their rows alone.
  template <class Run>
  Result<Residual> Forward(Context& context, Tape& tape, const Residual& x, const TokenBatch& batch,
                           const GraftUse& use, Run&& sub_layer) const {
    const BranchChoice choice = grafts_.Choose(context, tape, use);
    const auto run = [&](const Value& in, const TokenBatch& rows) -> Result<Value> {
      WEFT_ASSIGN_OR_RETURN(Value out, Between(context, tape, in, rows, use, sub_layer));
      if (choice.scale == 1) return out;
      return Scale(context, tape, std::move(out), choice.scale);
    };
    Residual skipped;
    if (!choice.computed) {
      skipped = Skip(tape, x);
      if (position_ != NormPosition::kPost) return skipped;
    } else if (position_ == NormPosition::kPre && choice.sequences.empty()) {
      WEFT_ASSIGN_OR_RETURN(Norm::Output in, norm_->Forward(context, tape, x));
      WEFT_ASSIGN_OR_RETURN(Value delta, run(in.normalized, batch));
      return AddOfSum(context, tape, {std::move(in.stream), std::move(delta)}, use, choice.scale);
    }
    WEFT_ASSIGN_OR_RETURN(Value in, Sum(context, tape, choice.computed ? x : skipped));
    Value delta;
    if (!choice.sequences.empty()) {
      WEFT_ASSIGN_OR_RETURN(const TokenBatch::Picked picked, batch.Pick(context, choice.sequences));
      WEFT_ASSIGN_OR_RETURN(Value part, GatherRows(context, tape, in, picked.rows));
      const Value stream = grafts_.Has(GraftPlace::kResidualSum) ? part : Value();
      if (position_ == NormPosition::kPre) {
        WEFT_ASSIGN_OR_RETURN(Norm::Output normed,
                              norm_->Forward(context, tape, {std::move(part), {}}));
        part = std::move(normed.normalized);
      }
      WEFT_ASSIGN_OR_RETURN(part, run(part, picked.batch));
      if (stream.tensor) {
        WEFT_ASSIGN_OR_RETURN(const Residual sum,
                              AddOfSum(context, tape, {stream, part}, use, choice.scale));
        WEFT_ASSIGN_OR_RETURN(part, Add(context, tape, part, sum.delta));
      }
      WEFT_ASSIGN_OR_RETURN(delta,
                            ScatterRows(context, tape, part, picked.rows, in.tensor.shape()[0]));
    } else if (choice.computed) {
      WEFT_ASSIGN_OR_RETURN(delta, run(in, batch));
    }
    Residual sum{std::move(in), std::move(delta)};
    if (choice.computed && choice.sequences.empty()) {
      WEFT_ASSIGN_OR_RETURN(sum, AddOfSum(context, tape, std::move(sum), use, choice.scale));
    }
    if (position_ != NormPosition::kPost) return sum;
    WEFT_ASSIGN_OR_RETURN(Norm::Output out, norm_->Forward(context, tape, sum));
    return Residual{std::move(out.normalized), {}};
  }

 private:
  /// The sub-layer with the grafts at its places.
  template <class Run>
  Result<Value> Between(Context& context, Tape& tape, const Value& x, const TokenBatch& rows,
                        const GraftUse& use, Run&& sub_layer) const {
    Value in = x;
    WEFT_ASSIGN_OR_RETURN(
        in, grafts_.Forward(GraftPlace::kSubLayerInput, context, tape, std::move(in), use));
    WEFT_ASSIGN_OR_RETURN(Value out, sub_layer(in, rows));
    if (grafts_.Has(GraftPlace::kParallelToSubLayer)) {
      WEFT_ASSIGN_OR_RETURN(
          in, grafts_.Forward(GraftPlace::kParallelToSubLayer, context, tape, std::move(in), use));
      WEFT_ASSIGN_OR_RETURN(out, Add(context, tape, out, in));
    }
    WEFT_ASSIGN_OR_RETURN(
        out, grafts_.Forward(GraftPlace::kSubLayerOutput, context, tape, std::move(out), use));
    return grafts_.Forward(GraftPlace::kResidualBranch, context, tape, std::move(out), use);
  }

  /// `x` with what the grafts at GraftPlace::kResidualSum make of it, times `scale`: the sum of
  /// `x`, and that. Releases what `x` holds before they run. Without such grafts `x`.
  Result<Residual> AddOfSum(Context& context, Tape& tape, Residual x, const GraftUse& use,
                            float scale) const;

  /// `x`, which needs a gradient where it would with the branch: parameters come for the backward
  /// pass in any case. That reports the gradients of the skipped parameters where it would compute
  /// them: reductions start as early as with the branch.
  Residual Skip(Tape& tape, Residual x) const;

  int64_t begin_parameter_;
  int64_t first_skipped_;  ///< From here to end_parameter_ a skipped branch uses none.
  int64_t end_parameter_ = 0;
  NormPosition position_;
  std::optional<Norm> norm_;
  Grafts grafts_;
};

}  // namespace weft::engine
