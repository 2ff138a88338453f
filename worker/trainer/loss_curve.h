#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/env.h"
#include "common/status.h"

namespace weft::trainer {

/// `<run_dir>/loss.jsonl`: one line `{"learning_rate":...,"loss":...,"step":...}` for each step,
/// from 1, or for the last step of each round by time, whatever attempts it took; `"accuracy"` too
/// in classification. Numbers are written so that they read back exactly; a loss that is not finite
/// is null.
class LossCurve {
 public:
  /// Opens the curve to go on after `step`: lines of later steps, left by an attempt that came
  /// further than its last checkpoint, are dropped, as is a line cut off by a crash.
  static Result<LossCurve> Open(Env& env, const std::string& run_dir, int64_t step);

  Status Append(int64_t step, double loss, double learning_rate,
                std::optional<double> accuracy = std::nullopt);

  /// Mean of the finite losses among the last 100 steps; 0 when there are none.
  double RecentMean() const;

  /// Mean of the accuracies among the last 100 steps, if they have any.
  std::optional<double> RecentAccuracy() const;

  /// What was appended survives power loss.
  Status Sync() { return file_->Sync(); }

 private:
  LossCurve() = default;
  struct Point {
    int64_t step = 0;
    double loss = 0;
    std::optional<double> accuracy;
  };
  static std::optional<Point> PointOfLine(std::string_view line);
  void Remember(const Point& point);

  std::unique_ptr<WritableFile> file_;
  std::deque<Point> recent_;
};

}  // namespace weft::trainer
