#include "tests/bench/scheduler_simulator/trace.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <random>
#include <sstream>

namespace weft::bench {
namespace {

double Percentile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<size_t>(std::lround(part * last))];
}

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

}  // namespace

Result<std::map<std::string, Trace>> ReadTraces(const std::string& path) {
  std::ifstream file(path);
  if (!file) return InvalidError("cannot read " + path);
  std::map<std::string, Trace> traces;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (number == 1 && line.starts_with("vc,")) continue;
    std::istringstream fields(line);
    std::string vc, job, submit, duration, gpus;
    std::getline(fields, vc, ',');
    std::getline(fields, job, ',');
    std::getline(fields, submit, ',');
    std::getline(fields, duration, ',');
    std::getline(fields, gpus, ',');
    TraceJob read;
    read.submit_seconds = std::atof(submit.c_str());
    read.duration_seconds = std::atof(duration.c_str());
    read.gpus = std::atoll(gpus.c_str());
    if (read.duration_seconds <= 0 || read.gpus <= 0) {
      return InvalidError(path + ":" + std::to_string(number) +
                          ": wants vc,job,submit_s,duration_s,gpus with a duration and GPUs");
    }
    traces[vc].push_back(read);
  }
  for (auto& [vc, trace] : traces) {
    std::stable_sort(trace.begin(), trace.end(), [](const TraceJob& a, const TraceJob& b) {
      return a.submit_seconds < b.submit_seconds;
    });
  }
  return traces;
}

Trace SyntheticTrace(int jobs, int64_t gpus, double load, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::lognormal_distribution<double> duration(8, 1.2);
  std::exponential_distribution<double> gap(1);
  Trace trace;
  double work = 0;
  for (int i = 0; i < jobs; ++i) {
    TraceJob job;
    const auto doublings = random() % 8;
    job.gpus = int64_t{1} << (doublings < 4 ? 0 : doublings - 3);
    job.gpus = std::min(job.gpus, std::max<int64_t>(gpus / 4, 1));
    job.duration_seconds = std::ceil(duration(random));
    work += job.duration_seconds * static_cast<double>(job.gpus);
    trace.push_back(job);
  }
  const double between = work / load / static_cast<double>(gpus) / jobs;
  double now = 0;
  for (TraceJob& job : trace) {
    job.submit_seconds = std::floor(now);
    now += gap(random) * between;
  }
  return trace;
}

void AddNoise(Trace& trace, double deviation, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, deviation);
  for (TraceJob& job : trace) job.prediction_factor = std::exp(normal(random));
}

double ScalingCurve::Speed(int64_t gpus) const {
  auto above = speeds_.lower_bound(gpus);
  if (above != speeds_.end() && above->first == gpus) return above->second;
  if (above == speeds_.end()) --above;
  if (above == speeds_.begin()) ++above;
  const auto below = std::prev(above);
  const double slope =
      std::log(above->second / below->second) /
      std::log(static_cast<double>(above->first) / static_cast<double>(below->first));
  return below->second *
         std::pow(static_cast<double>(gpus) / static_cast<double>(below->first), slope);
}

std::vector<int64_t> ElasticSizes(int64_t gpus, int64_t most) {
  std::vector<int64_t> sizes;
  for (const int64_t divisor : {4, 2}) {
    if (gpus % divisor == 0) sizes.push_back(gpus / divisor);
  }
  for (const int64_t factor : {1, 2, 4}) {
    if (gpus * factor <= most) sizes.push_back(gpus * factor);
  }
  return sizes;
}

Summary Summarize(const Trace& trace, const Outcome& outcome) {
  std::vector<double> slowdowns;
  for (size_t i = 0; i < trace.size(); ++i) {
    slowdowns.push_back(outcome.completion_seconds[i] / trace[i].duration_seconds);
  }
  return {Mean(outcome.completion_seconds),
          Percentile(outcome.completion_seconds, 0.99),
          Percentile(outcome.completion_seconds, 1),
          Mean(slowdowns),
          Percentile(slowdowns, 0.99),
          Percentile(slowdowns, 1),
          outcome.makespan_seconds};
}

}  // namespace weft::bench
