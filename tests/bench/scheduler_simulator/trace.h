#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/status.h"

namespace weft::bench {

/// A job of a trace.
struct TraceJob {
  double submit_seconds = 0;
  double duration_seconds = 0;  ///< On its own number of GPUs.
  int64_t gpus = 1;
  double prediction_factor = 1;  ///< What a prediction says over what is true.
};

/// Jobs in the order of submission.
using Trace = std::vector<TraceJob>;

/// Reads a CSV file with the columns vc,job,submit_s,duration_s,gpus; by virtual cluster. kInvalid
/// names the line that is wrong.
Result<std::map<std::string, Trace>> ReadTraces(const std::string& path);

/// `jobs` jobs that keep `gpus` GPUs busy by the part `load`: exponential gaps, log-normal
/// durations and powers of two of GPUs up to a quarter of the cluster.
Trace SyntheticTrace(int jobs, int64_t gpus, double load, uint64_t seed);

/// Sets the prediction factors: exp of normal numbers with that deviation.
void AddNoise(Trace& trace, double deviation, uint64_t seed);

/// How fast a job is on a number of GPUs, over its speed on one. Between the points that were
/// planned it follows a power.
class ScalingCurve {
 public:
  /// By number of GPUs; 1 must be there.
  explicit ScalingCurve(std::map<int64_t, double> speeds) : speeds_(std::move(speeds)) {}

  double Speed(int64_t gpus) const;
  const std::map<int64_t, double>& speeds() const { return speeds_; }

 private:
  std::map<int64_t, double> speeds_;
};

/// GPUs that a job which may be resized runs on: its own number times powers of two, from a quarter
/// of it to four times as many.
std::vector<int64_t> ElasticSizes(int64_t gpus, int64_t most);

/// What a policy made of a trace.
struct Outcome {
  std::vector<double> completion_seconds;  ///< By job, from its submission.
  double makespan_seconds = 0;
  int64_t preemptions = 0;
  int64_t resizes = 0;
  double lost_gpu_seconds = 0;  ///< By restarts.
};

/// Time of a start after a preemption or for a resize.
inline constexpr double kRestartSeconds = 60;

/// Numbers of an outcome; fairness counts slowdowns (completion over duration on an empty cluster).
struct Summary {
  double mean_completion_seconds = 0;
  double p99_completion_seconds = 0;
  double most_completion_seconds = 0;
  double mean_slowdown = 0;
  double p99_slowdown = 0;
  double max_slowdown = 0;
  double makespan_seconds = 0;
};
Summary Summarize(const Trace& trace, const Outcome& outcome);

}  // namespace weft::bench
