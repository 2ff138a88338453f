#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "worker/engine/techniques/parallel/gradient_buckets.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/tensor.h"
#include "worker/engine/train/gradient_reducer.h"

namespace weft::engine {

/// Gradients of one rank that stand in the host tier (Ren et al. 2021, "ZeRO-Offload", arXiv
/// 2101.06840). A bucket of them has memory on the device from the first gradient in it until its
/// last one is complete; then it goes down while the backward pass goes on. What earlier
/// micro-batches of the step left comes up again when its bucket is opened, so that gradients are
/// added where they always are, in the same order, with the same bits.
class OffloadedGradients : public GradientReducer {
 public:
  /// `context`, with a host tier, and `parameters`, which are offloaded, outlive this.
  OffloadedGradients(Context& context, ParameterSet* parameters, int64_t bucket_bytes);
  /// Waits for what is under way.
  ~OffloadedGradients() override;

  int64_t world_size() const override { return 1; }
  bool places_gradients() const override { return true; }
  bool carries_sums() const override { return true; }
  Result<TensorView> PlaceGradient(int64_t index) override;
  Status Begin(bool last_micro_batch) override;
  Status OnGradientReady(int64_t index) override;
  /// All gradients are in the host tier, where the parameters have them.
  Status Finish() override;
  Status SumScalars(std::span<double>) override { return OkStatus(); }
  Status Maximum(const TensorView&) override { return OkStatus(); }

 private:
  /// Elements of gradients() that hold gradients.
  struct Piece {
    int64_t bucket = 0;
    ParameterSet::Range range;
  };
  Status Open(int64_t bucket);
  /// Copies the pieces of a bucket between `memory`, where it begins, and the host tier.
  void Copy(int64_t bucket, float* memory, bool down) const;

  Context* context_;
  ParameterSet* parameters_;
  BucketLayout layout_;
  std::vector<Piece> pieces_;
  std::vector<Tensor> memory_;      ///< By bucket.
  std::vector<int64_t> missing_;    ///< By bucket: parameters that are not complete yet.
  std::vector<int64_t> on_way_;     ///< By bucket: the number of its last copy down.
  std::vector<bool> sums_below_;    ///< By bucket: the host tier has sums of this step.
  std::vector<int64_t> in_flight_;  ///< Numbers of copies whose memory may not be free yet.
};

}  // namespace weft::engine
