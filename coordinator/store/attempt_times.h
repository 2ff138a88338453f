#pragma once

#include <cstdint>
#include <optional>

#include "common/spec/field.h"

namespace weft::coordinator {

/// What the wall time of an attempt went to, as far as its workers have reported.
struct AttemptTimes {
  std::optional<double> training_at;
  std::optional<double> failed_at;
  double step_at = 0;
  int64_t step = 0;
  int64_t skipped_steps = 0;
  int64_t done_before = 0;
  double checkpoint_seconds = 0;
  double evaluation_seconds = 0;
  double rework_seconds = 0;
  double data_wait_seconds = 0;
  double straggler_seconds = 0;

  bool operator==(const AttemptTimes&) const = default;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("training_at", "Its first step began.").Unit("seconds since 1970 UTC"),
          self.training_at);
    visit(Field("failed_at", "It could not go on.").Unit("seconds since 1970 UTC"), self.failed_at);
    visit(Field("step_at", "Its newest step was reported; 0: none yet.")
              .Unit("seconds since 1970 UTC"),
          self.step_at);
    visit(Field("step", "That step; before the first one the step it should resume from."),
          self.step);
    visit(Field("skipped_steps", "Updates that were dropped up to it, over all attempts."),
          self.skipped_steps);
    visit(Field("done_before",
                "Steps up to here were made before: by earlier attempts, or before "
                "the training went back."),
          self.done_before);
    visit(Field("checkpoint_seconds", "Training waited for checkpoints.").Unit("seconds"),
          self.checkpoint_seconds);
    visit(Field("evaluation_seconds", "In validation.").Unit("seconds"), self.evaluation_seconds);
    visit(Field("rework_seconds", "In steps that were made before, or dropped.").Unit("seconds"),
          self.rework_seconds);
    visit(Field("data_wait_seconds", "Steps waited for data.").Unit("seconds"),
          self.data_wait_seconds);
    visit(Field("straggler_seconds", "Ranks waited for a straggler.").Unit("seconds"),
          self.straggler_seconds);
  }
};

}  // namespace weft::coordinator
