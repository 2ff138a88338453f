#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "worker/engine/techniques/parallel/bucket_reducer.h"
#include "worker/engine/techniques/parallel/gradient_reducer.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// Gradients in the host memory pool (Ren et al. 2021, "ZeRO-Offload", arXiv
/// 2101.06840). A bucket of them has memory on the device from the first gradient in it until its
/// last one is complete; then it goes down while the backward pass goes on. What earlier
/// micro-batches of the step left comes up again when its bucket is opened, so that gradients are
/// added where they always are, in the same order, with the same bits.
///
/// With several ranks a complete bucket is first reduced in place, and what this rank updates of it
/// goes down. Where ranks shard gradients this happens in every micro-batch, whose sums are added
/// to those of the earlier ones: below by processors, and nothing comes up; on a CUDA device those
/// come up and are added to there, so that nothing waits for the host.
///
/// Gradients of units that are kept on the device (ParameterSet::KeepOnDevice) have their memory
/// there throughout; of several ranks they are reduced in it.
///
/// Gradients of parameters in a file (nn/parameter_file.h) go on into it, where ranks shard
/// gradients only this rank's parts, and the host memory pool has two buckets of them meanwhile.
class OffloadedGradients : public GradientReducer {
 public:
  /// `context`, with a host memory pool, `parameters`, which are offloaded, and `ranks`, made with
  /// the same parameters and `bucket_bytes`, outlive this; no ranks: there is one.
  OffloadedGradients(Context& context, ParameterSet* parameters, int64_t bucket_bytes,
                     BucketReducer* ranks = nullptr);
  /// Waits for what is under way.
  ~OffloadedGradients() override;

  int64_t world_size() const override { return ranks_ == nullptr ? 1 : ranks_->world_size(); }
  bool places_gradients() const override { return true; }
  bool carries_sums() const override { return !ReducesEveryPass(); }
  int64_t held_bytes() const override { return ranks_ == nullptr ? 0 : ranks_->held_bytes(); }
  Result<TensorView> PlaceGradient(int64_t index) override;
  Status Begin(bool last_micro_batch) override;
  Status OnGradientReady(int64_t index) override;
  /// All gradients are in the host memory pool, where the parameters, or parts(), have them, or in
  /// a file.
  Status Finish() override;
  std::span<const ParameterPart> parts() const override;
  bool shares_updates() const override { return ranks_ != nullptr && ranks_->shares_updates(); }
  Status GradientsMoved() override;
  bool first_shards() const override { return ranks_ == nullptr || ranks_->first_shards(); }
  Status SumOverParts(std::span<double> values) override;
  Result<std::vector<float>> GatherParts(int64_t index, std::span<const float> own) override;
  Status GatherParameters() override;
  Status SumScalars(std::span<double> values) override;
  Status Maximum(const TensorView& values) override;

 private:
  /// Elements of gradients() that hold gradients.
  struct Piece {
    int64_t bucket = 0;
    ParameterSet::Range range;
  };
  /// Some elements of a bucket, and where they are below.
  struct Slice {
    ParameterSet::Range range;
    float* below = nullptr;
  };
  /// A bucket that is being reduced, or may still be going down.
  struct InFlight {
    int64_t job = 0;
    Tensor memory;
    Tensor sums;  ///< Of earlier micro-batches, which have come up for it.
  };

  bool ReducesEveryPass() const { return ranks_ != nullptr && ranks_->places_gradients(); }
  Slice Whole(int64_t bucket) const;
  Slice Kept(int64_t bucket) const;
  /// Where the file's memory has that of `range`, which is of the bucket.
  Slice InFile(int64_t bucket, const ParameterSet::Range& range) const;
  Status Open(int64_t bucket);
  /// Sends a slice of a bucket down once `work` is done with it; `adds`: to what is there.
  Status SendDown(int64_t bucket, Tensor memory, const Slice& slice, bool adds, const Work& work);
  /// Sends all of a bucket, or what this rank keeps of it, down, and into the file where there is
  /// one; `adds` and `work` as above.
  Status Send(int64_t bucket, Tensor memory, bool whole, bool adds, const Work& work);
  /// Begins to bring up the sums of earlier micro-batches in a slice: a job of the lane up.
  Result<int64_t> BringSums(int64_t bucket, const Slice& slice, Tensor& sums);
  /// On the stream of the lane down: adds what `job` brings up to the slice of a bucket at
  /// `memory`.
  Status AddSums(int64_t bucket, float* memory, const Slice& slice, int64_t job,
                 const TensorView& sums);
  /// Has the slice that goes down last written.
  void WriteDown(int64_t bucket, const Slice& slice);
  /// move(above, below, elements) of the gradients in a slice of a bucket, which is at `memory`.
  template <class Move>
  Status ForEachRun(int64_t bucket, float* memory, const Slice& slice, Move&& move) const;

  Context* context_;
  ParameterSet* parameters_;
  BucketReducer* const ranks_;
  BucketLayout layout_;
  std::vector<Piece> pieces_;
  bool last_micro_batch_ = false;
  bool opens_first_ = false;      ///< The next bucket to be opened is the first one of a pass.
  std::vector<Tensor> memory_;    ///< By bucket.
  std::vector<int64_t> missing_;  ///< By bucket: parameters that are not complete yet.
  std::vector<int64_t> last_download_;  ///< By bucket: the number of its last copy down.
  std::vector<bool> sums_below_;        ///< By bucket: the host memory pool has sums of this step.
  std::vector<bool> kept_;              ///< By bucket: it is of units that are kept on the device.
  const size_t most_in_flight_;         ///< Buckets.
  std::vector<Work> kept_reductions_;   ///< Of these, under way.
  std::deque<InFlight> in_flight_;
  ParameterFile* const file_;  ///< Or none.
  Status cut_;                 ///< The file has room for gradients.
};

}  // namespace weft::engine
