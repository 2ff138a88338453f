#pragma once

#include <memory>
#include <utility>

#include "common/spec/batch_schedule.h"
#include "worker/engine/data/batch_source.h"

namespace weft::engine {

/// The sequences of a source that yields full batches, in the same endless order, for steps
/// whose batches grow: no sequence is skipped or repeated. As pure a function as the source.
/// Thread-safe when the source is.
class BatchWarmup : public BatchSource {
 public:
  BatchWarmup(std::unique_ptr<BatchSource> source, const TrainSpec& train)
      : source_(std::move(source)), schedule_(train), full_batch_(train.global_batch) {}

  int64_t Sequences() const override { return source_->Sequences(); }

  /// `count` divides schedule.unit(), and first_sequence is a multiple of it: so no request lies
  /// across two of the source's batches.
  Result<Batch> Get(int64_t step, int64_t first_sequence, int64_t count) override {
    const int64_t position = schedule_.Before(step) + first_sequence;
    return source_->Get(position / full_batch_, position % full_batch_, count);
  }

 private:
  std::unique_ptr<BatchSource> source_;
  BatchSchedule schedule_;
  int64_t full_batch_;
};

}  // namespace weft::engine
