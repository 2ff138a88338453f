#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "worker/engine/nn/parameter_part.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/nn/piecewise_norm.h"
#include "worker/engine/tensor/file_images.h"
#include "worker/engine/tensor/host_tier.h"
#include "worker/engine/tensor/named_tensor.h"

namespace weft::engine {

class ParameterFeed;

/// Values and gradients of a ParameterSet that stand in files below the host tier (Rajbhandari et
/// al. 2021, "ZeRO-Infinity", arXiv 2104.07857), whose memory has those of a few units at a time:
/// the next ones to be computed with, or to be updated (parameter_walk.h).
class ParameterFile {
 public:
  /// `context` has a host tier with a directory; `parameters`, whose values take so many bytes by
  /// unit, is being allocated and outlives this.
  static Result<std::unique_ptr<ParameterFile>> New(const Context& context,
                                                    ParameterSet* parameters,
                                                    const std::vector<int64_t>& unit_bytes);
  ~ParameterFile();

  /// Takes memory for the values of `unit`, whose parameters have a value() there from now on, and
  /// begins to read them; with `reads` false they are undefined. Nothing where they are in memory.
  Status Start(int64_t unit, bool reads = true);
  /// Waits until they have been read.
  Status Await(int64_t unit) { return values_->Await(static_cast<size_t>(unit)); }
  /// The same in a thread beside the one that computes.
  Status AwaitBeside(int64_t unit) { return values_->AwaitBeside(static_cast<size_t>(unit)); }
  /// Gives back their memory.
  void Drop(int64_t unit);
  /// Writes them, and then gives back their memory.
  void WriteBehind(int64_t unit);
  /// They become zero; of those that are in memory.
  void ClearValues(int64_t unit) { values_->Clear(static_cast<size_t>(unit)); }
  FileImages& values() { return *values_; }
  /// The way of an update beside a pass.
  ParameterFeed& feed() { return *feed_; }

  /// Elements of gradients that are written and read together, of one unit.
  struct Bucket {
    int64_t unit = 0;
    ParameterSet::Range range;
  };
  /// Gradients stand in these, in any order. Before there are any. The norm is of `counted`
  /// (PiecewiseNorm), which are among them.
  Status CutGradients(std::vector<Bucket> buckets, std::vector<ParameterSet::Range> counted);
  /// Images are the buckets.
  FileImages& gradients() { return *gradients_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// Of the trained ones among the parameters of `unit`, rising.
  const std::vector<size_t>& BucketsOf(int64_t unit) const {
    return unit_buckets_[static_cast<size_t>(unit)];
  }
  /// Writes bucket `b`, which is in memory, once `before` has returned, and then gives back its
  /// memory. What counts of it is measured on the way.
  void WriteGradients(size_t b, std::function<Status()> before = {});
  /// Of the gradients that are written while it takes any: it is known once all are.
  PiecewiseNorm& norm() { return norm_; }
  /// Where gradient `element` of bucket `b`, which is in memory, stands.
  float* GradientAt(size_t b, int64_t element) const {
    return reinterpret_cast<float*>(gradients_->memory(b)) + (element - buckets_[b].range.begin);
  }

  /// `part` where its value and its gradient are in memory now; null where one is not.
  ParameterPart InMemory(const ParameterPart& part) const;

  /// Copies the gradients of `part`, which is not in memory, to the f32 numbers at `to`, or
  /// replaces them by those at `from`, whose norm is not measured.
  Status ReadGradient(const ParameterPart& part, const TensorView& to);
  Status WriteGradient(const ParameterPart& part, const TensorView& from);

  /// The value of parameter `index`, for checkpoints, while nothing is trained.
  std::shared_ptr<StoredNumbers> Stored(int64_t index);

  ParameterSet& parameters() { return *parameters_; }

 private:
  class Value;
  /// The bucket that has the gradients of `part`.
  size_t BucketOf(const ParameterPart& part) const;
  /// The byte of its bucket at which they begin.
  size_t GradientByte(const ParameterPart& part) const;
  ParameterFile(const Context& context, ParameterSet* parameters);

  Context below_;
  ParameterSet* const parameters_;
  std::unique_ptr<ParameterFeed> feed_;  ///< What is written waits for it.
  std::unique_ptr<FileLanes> lanes_ = std::make_unique<FileLanes>();
  std::unique_ptr<FileImages> values_;
  std::unique_ptr<FileImages> gradients_;
  std::vector<Bucket> buckets_;
  std::vector<std::vector<size_t>> unit_buckets_;
  PiecewiseNorm norm_;  ///< Of who writes gradients, while some are under way.
};

}  // namespace weft::engine
