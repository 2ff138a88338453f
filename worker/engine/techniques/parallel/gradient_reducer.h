#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "kernels/tensor_view.h"
#include "worker/engine/comm/collective_recorder.h"
#include "worker/engine/nn/parameter_part.h"

namespace weft::engine {

/// Sums gradients over the data-parallel ranks, in place in the flat gradient buffer of the
/// ParameterSet it was made for, while the backward pass still runs. A training step calls, on one
/// thread and on every rank in the same order:
///   SumScalars(target counts)
///   for each micro-batch: Begin(last), then, when last, OnGradientReady once for every parameter
///   Finish()
///   SplitDerived(derived, split), where parameters are derived
///   SumScalars(loss)
///   GatherParameters(), where there are parts()
///   Maximum(magnitudes) and GatherParts(index, part), where a technique asks for it
class GradientReducer {
 public:
  virtual ~GradientReducer() = default;

  virtual int64_t world_size() const = 0;

  /// Whether gradients have no memory of their own: then PlaceGradient gives them some in each
  /// micro-batch, and those of each micro-batch are reduced.
  virtual bool places_gradients() const { return false; }

  /// Then: whether what PlaceGradient gives holds the sums of the earlier micro-batches of the
  /// step, to which this one adds.
  virtual bool carries_sums() const { return false; }

  /// Then: adds the sums of the `micro_batches` of each step, a power of two, in a MicroBatchTree.
  /// Before the first step. kExhausted without memory.
  virtual Status SumInTree([[maybe_unused]] int64_t micro_batches) {
    return InternalError("gradients have places of their own");
  }

  /// Where the gradient of parameter `index` of this micro-batch is to be written.
  virtual Result<TensorView> PlaceGradient(int64_t index) {
    return InternalError("gradient " + std::to_string(index) + " has a place of its own");
  }

  /// Bytes of the host that its collectives keep, which no Allocator gave them.
  virtual int64_t held_bytes() const { return 0; }

  /// The groups whose operations Begin to Finish and GatherParameters enqueue, where these calls
  /// can be recorded as part of a graph; empty: they cannot.
  virtual std::vector<CollectiveRecorder*> recorders() const { return {}; }

  /// A micro-batch starts; only the gradients of the last one are reduced, except
  /// with places_gradients().
  virtual Status Begin(bool last_micro_batch) = 0;

  /// The gradient of parameter `index` (of the ParameterSet) is complete on this rank and nothing
  /// touches it before Finish. Called in the backward pass, in its order, which is the same on all
  /// ranks. May start a collective; does not wait for one.
  virtual Status OnGradientReady(int64_t index) = 0;

  /// Waits until every gradient, or those of parts(), hold the sum over the ranks. An error of any
  /// collective started since Begin surfaces here at the latest.
  virtual Status Finish() = 0;

  /// Computes the gradients of the sources of derived parameters (ParameterList::Derive), whose own
  /// gradients are whole and summed.
  using Split = std::function<Status(std::span<const int64_t> derived)>;

  /// Calls `split` for `derived`, all derived parameters of the ParameterSet: at once, or one by
  /// one, in another order, where gradients are placed. Of sources then the parts() have gradients.
  virtual Status SplitDerived(std::span<const int64_t> derived, const Split& split) {
    return split(derived);
  }

  /// The part of each trained parameter that this rank updates where the ranks shard the updates;
  /// Finish sums its gradient. Empty: every rank updates everything.
  virtual std::span<const ParameterPart> parts() const { return {}; }

  /// Whether ranks update different parts. True on each of them, also where a stage of a pipeline
  /// trains nothing, so that there are no parts().
  virtual bool shares_updates() const { return false; }

  /// Gradients are in other memory from now on (ParameterSet::MoveGradients).
  virtual Status GradientsMoved() { return OkStatus(); }

  /// Then: the parts of this many ranks, which follow each other, make up everything, and groups of
  /// ranks have the same parts. This is one of the first group.
  virtual bool first_shards() const { return true; }

  /// Replaces each value by its sum over the ranks of such a group, added in rank order; with
  /// expert parallelism, over those of them with the same experts.
  virtual Status SumOverParts(std::span<double> values) { return SumScalars(values); }

  /// All numbers of parameter `index`, where the ranks of such a group have successive parts, as in
  /// parts(): `own` are those of this rank. They call it together; the numbers go from host to
  /// host. Where the parts of other ranks do not fit, kInternal.
  virtual Result<std::vector<float>> GatherParts([[maybe_unused]] int64_t index,
                                                 std::span<const float> own) {
    return std::vector<float>(own.begin(), own.end());
  }

  /// Where ranks shard the updates: each rank's parts have changed, and go to all others.
  virtual Status GatherParameters() { return OkStatus(); }

  /// Replaces each value by its sum over the ranks, added in rank order.
  virtual Status SumScalars(std::span<double> values) = 0;

  /// Replaces each f32 number, which is not negative, by the largest of the ranks; a NaN is larger
  /// than all. Between Finish and the next Begin.
  virtual Status Maximum(const TensorView& values) = 0;
};

}  // namespace weft::engine
