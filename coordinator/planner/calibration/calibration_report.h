#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/spec/field.h"
#include "common/spec/time_calibration.h"

namespace weft::planner {

/// Errors of predicted step times over runs: |predicted - measured| / measured.
struct ErrorSummary {
  double mean = 0;
  double median = 0;
  double percentile_90 = 0;
  double bias = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("mean", "Mean error."), self.mean);
    visit(Field("median", "Median error."), self.median);
    visit(Field("percentile_90", "Nine of ten are no larger."), self.percentile_90);
    visit(Field("bias", "Median of predicted over measured, less 1: above 0 too long."), self.bias);
  }
};

/// A run and what is predicted for it.
struct RunError {
  std::string run;
  std::string what;
  double measured_seconds = 0;
  double planned_seconds = 0;
  double defaults_seconds = 0;
  double before_seconds = 0;
  double after_seconds = 0;
  double held_out_seconds = 0;
  double near_seconds = 0;
  int64_t timed_steps = 0;
  int64_t memory_bytes = 0;
  int64_t planned_memory_bytes = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("run", "The job, and which attempt."), self.run);
    visit(Field("what", "Its model, and how it ran."), self.what);
    visit(Field("measured_seconds", "Median of its steps.").Unit("seconds"), self.measured_seconds);
    visit(Field("planned_seconds", "As predicted before it ran.").Unit("seconds"),
          self.planned_seconds);
    visit(Field("defaults_seconds", "By the defaults.").Unit("seconds"), self.defaults_seconds);
    visit(Field("before_seconds", "By what was in use until now.").Unit("seconds"),
          self.before_seconds);
    visit(Field("after_seconds", "By what was fitted to all runs.").Unit("seconds"),
          self.after_seconds);
    visit(Field("held_out_seconds", "By what was fitted to others alone.").Unit("seconds"),
          self.held_out_seconds);
    visit(Field("near_seconds",
                "The same, and by what that leaves unexplained of others with blocks of nearly the "
                "same shape.")
              .Unit("seconds"),
          self.near_seconds);
    visit(Field("timed_steps", "Steps that were timed."), self.timed_steps);
    visit(Field("memory_bytes", "Measured peak of rank 0 without the process itself; 0: unknown.")
              .Unit("bytes"),
          self.memory_bytes);
    visit(Field("planned_memory_bytes", "As predicted, of the fullest rank.").Unit("bytes"),
          self.planned_memory_bytes);
  }
};

/// A run from which nothing is learned.
struct LeftOut {
  std::string run;
  std::string why;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("run", "The job, and which attempt."), self.run);
    visit(Field("why", "What is the matter."), self.why);
  }
};

/// What was assumed of a machine, and what is.
struct FittedConstant {
  std::string name;
  std::string unit;
  double before = 0;
  double after = 0;
  double least = 0;
  double most = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("name", "Of TimeCalibration."), self.name);
    visit(Field("unit", "Empty for a share."), self.unit);
    visit(Field("before", "In use until now."), self.before);
    visit(Field("after", "Fitted to all runs."), self.after);
    visit(Field("least", "Its range."), self.least);
    visit(Field("most", "Its range."), self.most);
  }
};

/// The calibration of one kind of machine.
struct MachineReport {
  std::string machine;
  bool adopted = false;
  std::string verdict;
  ErrorSummary defaults;
  ErrorSummary before;
  ErrorSummary after;
  ErrorSummary held_out;
  ErrorSummary near;
  std::vector<FittedConstant> constants;
  std::vector<RunError> runs;
  TimeCalibration calibration;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("machine", "Processor and instruction set."), self.machine);
    visit(Field("adopted",
                "What was fitted is better than the defaults for runs that it has not "
                "seen."),
          self.adopted);
    visit(Field("verdict", "For people."), self.verdict);
    visit(Field("defaults", "Errors by the defaults."), self.defaults);
    visit(Field("before", "Errors by what was in use until now."), self.before);
    visit(Field("after", "Errors by what was fitted, of the runs that it was fitted to."),
          self.after);
    visit(Field("held_out", "Errors where each run is predicted by what was fitted to others."),
          self.held_out);
    visit(Field("near", "The same, and by runs near: what constants leave unexplained of others."),
          self.near);
    visit(Field("constants", "What is assumed."), self.constants);
    visit(Field("runs", "Newest first."), self.runs);
    visit(Field("calibration", "In use from now on, where it is adopted."), self.calibration);
  }
};

struct CalibrationReport {
  bool dry_run = false;
  bool reset = false;
  std::vector<MachineReport> machines;
  std::vector<LeftOut> left_out;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("dry_run", "Nothing was changed."), self.dry_run);
    visit(Field("reset", "What was fitted before is forgotten."), self.reset);
    visit(Field("machines", "By kind of machine."), self.machines);
    visit(Field("left_out", "Runs from which nothing is learned."), self.left_out);
  }
};

/// For people: errors before and after, the constants, the runs. Ends with a newline.
std::string FormatCalibration(const CalibrationReport& report);

}  // namespace weft::planner
