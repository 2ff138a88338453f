#pragma once

#include <cstdint>

#include "worker/engine/data/batch_source.h"

namespace weft::engine {

/// The first batches of training data, for an evaluation on them. Ranges of sequences lie within
/// one batch.
class FirstBatches : public BatchSource {
 public:
  /// `train` outlives this; its batches have `batch` sequences.
  FirstBatches(BatchSource* train, int64_t batch, int64_t batches)
      : train_(train), batch_(batch), batches_(batches) {}

  int64_t Sequences() const override { return batch_ * batches_; }

  Result<Batch> Get(int64_t /*step*/, int64_t first_sequence, int64_t count) override {
    return train_->Get(first_sequence / batch_, first_sequence % batch_, count);
  }

 private:
  BatchSource* train_;
  int64_t batch_;
  int64_t batches_;
};

}  // namespace weft::engine
