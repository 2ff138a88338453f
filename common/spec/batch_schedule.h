#pragma once

#include <cstdint>

#include "common/spec/job_spec.h"

namespace weft {

/// Sequences of each step of a job, over all ranks. Without warm-up every step has
/// train.global_batch. With it, step s of the first train.batch_warmup_steps has
///   unit * (1 + floor(s * (units - 1) / batch_warmup_steps)),  unit = train.batch_warmup_start,
/// units = global_batch / unit: whole multiples of the first batch, so that what divides that
/// divides them all, whatever the number of ranks. A pure function of the job.
class BatchSchedule {
 public:
  /// The schedule of a job that ValidateJob accepts.
  explicit BatchSchedule(const TrainSpec& train);

  /// Every batch is a multiple of this; the full batch without warm-up.
  int64_t unit() const { return unit_; }

  /// Sequences of step `step`, from 0.
  int64_t At(int64_t step) const;

  /// Sequences of all steps before `step`.
  int64_t Before(int64_t step) const;

 private:
  int64_t unit_;
  int64_t units_;
  int64_t warmup_steps_;
};

}  // namespace weft
