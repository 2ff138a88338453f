#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "coordinator/store/store.h"
#include "tests/simulation/timeline.h"

namespace weft::simulation {

/// What must hold whatever happens, by what is stored.
class Rules {
 public:
  explicit Rules(Timeline& timeline) : timeline_(timeline) {}

  /// A change is durable.
  void See(const coordinator::Transaction& change);
  /// Ranks on a worker are no more.
  void SetCores(const std::string& worker, int64_t cores) { cores_[worker] = cores; }
  /// A worker keeps a line that it has sent no longer.
  void SeeForgotten(const std::string& job, const coordinator::LogRecord& line);
  /// Jobs of a queue have no more GPUs.
  void SetLimit(const std::string& queue, int64_t gpus) { limits_[queue] = gpus; }
  void Break(const std::string& what);
  const std::vector<std::string>& broken() const { return broken_; }

 private:
  void SeeJob(const coordinator::JobRecord& job);
  void SeeAttempt(const coordinator::AttemptRecord& attempt);
  /// It is about to begin.
  void SeeStart(const coordinator::AttemptRecord& attempt);

  Timeline& timeline_;
  std::map<std::string, coordinator::JobRecord> jobs_;
  std::map<std::string, coordinator::AttemptRecord> attempts_;  ///< The newest of each job.
  /// Number of the last line of each job, epoch and rank.
  std::map<std::tuple<std::string, int64_t, int64_t>, int64_t> lines_;
  std::map<std::string, int64_t> cores_;
  std::map<std::string, int64_t> limits_;
  std::vector<std::string> broken_;
};

}  // namespace weft::simulation
