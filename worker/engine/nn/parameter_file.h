#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "worker/engine/nn/parameter_part.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/nn/piecewise_norm.h"
#include "worker/engine/tensor/file_images.h"
#include "worker/engine/tensor/host_memory_pool.h"
#include "worker/engine/tensor/named_tensor.h"

namespace weft::engine {

class UpdatePipeline;

/// Values and gradients of a ParameterSet in files below the host memory pool (Rajbhandari et al.
/// 2021, "ZeRO-Infinity", arXiv 2104.07857), whose memory has those of a few units at a time: the
/// next ones for computation, or for the update (parameter_file_iterator.h).
class ParameterFile {
 public:
  /// `context` has a host memory pool with a directory. `parameters`, whose values take the given
  /// bytes by unit, is being allocated and outlives this.
  static Result<std::unique_ptr<ParameterFile>> New(const Context& context,
                                                    ParameterSet* parameters,
                                                    const std::vector<int64_t>& unit_bytes);
  ~ParameterFile();

  /// Takes memory for the values of `unit`, whose parameters have a value() there from now on, and
  /// begins to read them; with `reads` false they are undefined. Nothing where they are in memory.
  Status Start(int64_t unit, bool reads = true);
  /// Waits until they have been read.
  Status Await(int64_t unit) { return values_->Await(static_cast<size_t>(unit)); }
  /// Waits until they have been read, in another thread than the computing one.
  Status AwaitUncounted(int64_t unit) { return values_->AwaitUncounted(static_cast<size_t>(unit)); }
  /// Frees their memory.
  void Drop(int64_t unit);
  /// Writes them, and then frees their memory.
  void WriteBehind(int64_t unit);
  /// Sets the values of `unit` that are in memory to zero.
  void ClearValues(int64_t unit) { values_->Clear(static_cast<size_t>(unit)); }
  FileImages& values() { return *values_; }
  /// The pipeline of an update that overlaps with a pass.
  UpdatePipeline& update_pipeline() { return *update_pipeline_; }

  /// Elements of gradients that are written and read together, of one unit.
  struct Bucket {
    int64_t unit = 0;
    ParameterSet::Range range;
  };
  /// Sets the buckets of gradients, in any order, before there are any. The norm covers the ranges
  /// `counted` of them (PiecewiseNorm).
  Status CutGradients(std::vector<Bucket> buckets, std::vector<ParameterSet::Range> counted);
  /// Images are the buckets.
  FileImages& gradients() { return *gradients_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// The buckets of the trained parameters of `unit`, rising.
  const std::vector<size_t>& BucketsOf(int64_t unit) const {
    return unit_buckets_[static_cast<size_t>(unit)];
  }
  /// Writes bucket `b`, which is in memory, once `before` has returned, and then frees its memory.
  /// Its counted ranges are measured on the way.
  void WriteGradients(size_t b, std::function<Status()> before = {});
  /// The norm of the gradients that are written while it is active; known once all are written.
  PiecewiseNorm& norm() { return norm_; }
  /// The address of gradient `element` of bucket `b`, which is in memory.
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
  std::unique_ptr<UpdatePipeline> update_pipeline_;  ///< What is written waits for it.
  std::unique_ptr<FileLanes> lanes_ = std::make_unique<FileLanes>();
  std::unique_ptr<FileImages> values_;
  std::unique_ptr<FileImages> gradients_;
  std::vector<Bucket> buckets_;
  std::vector<std::vector<size_t>> unit_buckets_;
  PiecewiseNorm norm_;  ///< Of who writes gradients, while some are under way.
};

}  // namespace weft::engine
