#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/planner/cluster/calibration.h"

namespace weft::planner {

/// A quantity in which a run lies outside of all that were measured.
struct Extrapolation {
  std::string_view quantity;  ///< "micro-batch", "pipeline-parallel ranks", "accelerator", ...
  std::string text;           ///< "micro-batch 16 (measured: 1 to 8; 2 times the most)".
};

/// Says that a number is outside of what was measured, [low, high]; nothing was where high is less.
Extrapolation OutsideSpan(std::string_view quantity, int64_t value, int64_t low, int64_t high);

/// Says that a kind is none of those measured.
Extrapolation OutsideKinds(std::string_view quantity, const std::string& value,
                           const std::string& measured);

/// What the runs span that constants were fitted to. Constants carry over within it; outside, other
/// effects may rule, and a prediction is an extrapolation. Quantities are looked at one by one: a
/// run may lie inside of each range and still combine what was never measured together.
class CalibratedRange {
 public:
  /// Takes runs that PredictStep accepts; without runs, everything is outside.
  explicit CalibratedRange(const std::vector<MeasuredRun>& runs);

  /// Every quantity in which `run` on `device` lies outside: the model's size, width and sequence
  /// length; each degree of parallelism, devices, micro-batch, and micro-batches a step; and what
  /// is either the same or not: accelerator, precision, recomputation, ZeRO stage, and whether
  /// tensor-parallel ranks or replicas of a machine reach others.
  std::vector<Extrapolation> Outside(const AcceleratorSpec& device, const ClusterRun& run) const;

 private:
  struct Span {
    int64_t low = 0, high = -1;
  };
  std::vector<Span> spans_;                   ///< Of each number.
  std::vector<std::set<std::string>> kinds_;  ///< Of what is the same or not.
};

}  // namespace weft::planner
