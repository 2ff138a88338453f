#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/spec/field.h"
#include "common/spec/resource_use.h"

namespace weft::trainer {

/// Most steps recorded at once.
inline constexpr int64_t kMaxProfileSteps = 100;

/// One row of a profile.
struct ProfileOperation {
  std::string kind = "operation";
  std::string name;
  double calls_per_step = 0;
  double seconds_per_step = 0;
  double share = 0;
  std::optional<double> flops_per_second;
  std::optional<double> bytes_per_second;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("kind",
                "phase: part of the step; operation: within the phases; collective: overlapped, "
                "on a thread of its own.")
              .OneOf({"phase", "operation", "collective"}),
          self.kind);
    visit(Field("name", "What it is."), self.name);
    visit(Field("calls_per_step", "Mean."), self.calls_per_step);
    visit(Field("seconds_per_step", "Mean, without other operations within it.").Unit("seconds"),
          self.seconds_per_step);
    visit(Field("share", "Of the step, 0 to 1."), self.share);
    visit(Field("flops_per_second", "Absent where its work is not known.").Unit("FLOP/s"),
          self.flops_per_second);
    visit(Field("bytes_per_second", "Absent where its work is not known.").Unit("bytes/s"),
          self.bytes_per_second);
  }
};

/// Where the time of some steps went. The table is of rank 0, the trace of all ranks.
struct ProfileReport {
  int64_t first_step = 0;
  int64_t steps = 0;
  int64_t ranks = 1;
  double seconds_per_step = 0;
  std::string trace_path;
  int64_t dropped_events = 0;
  std::vector<ProfileOperation> operations;
  std::vector<CollectiveUse> collectives;
  TierUse tiers;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("first_step", "First step recorded, from 1.").Unit("steps"), self.first_step);
    visit(Field("steps", "Steps recorded; fewer than asked for when the job ended before.")
              .Unit("steps"),
          self.steps);
    visit(Field("ranks", "Ranks in the trace."), self.ranks);
    visit(Field("seconds_per_step", "Mean, of the steps alone.").Unit("seconds"),
          self.seconds_per_step);
    visit(Field("trace_path", "Chrome trace, for Perfetto or chrome://tracing."), self.trace_path);
    visit(Field("dropped_events", "Events left out of the trace because it grew too long."),
          self.dropped_events);
    visit(Field("operations", "Phases, operations and collectives, each by time."),
          self.operations);
    visit(Field("collectives", "By axis and kind, per step."), self.collectives);
    visit(Field("tiers", "Most bytes in a step, and waits per step."), self.tiers);
  }
};

}  // namespace weft::trainer
