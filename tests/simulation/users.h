#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "coordinator/service/service.h"
#include "tests/simulation/coordinator.h"
#include "tests/simulation/ranks.h"
#include "tests/simulation/rules.h"
#include "tests/simulation/timeline.h"

namespace weft::simulation {

/// A queue of a limit of its own.
inline constexpr char kNarrowQueue[] = "narrow";
inline constexpr int64_t kNarrowGpus = 2;

/// People who submit jobs, again and again until they have an answer, change their minds, and take
/// machines out of use and back.
class Users {
 public:
  /// `gpus`: of all machines; jobs want no more, and of those whose ranks come and go at least
  /// `machines`.
  Users(Timeline& timeline, Coordinator& coordinator, Rules& rules,
        std::vector<std::string> workers, int64_t gpus, int64_t machines);

  void Submit();
  /// One of them does something to a job, or to a machine.
  void Meddle();
  /// They let all go on that they held up. To be called again until AllEnded.
  void Settle();
  bool AllEnded() const;
  /// The jobs that have not, with what they wait for.
  std::vector<std::string> Unfinished() const;
  /// Compares what they were answered with what is stored at the end.
  void Check(const Ranks& ranks);

 private:
  struct Job {
    std::string request_id;
    JobSpec spec;
    std::string id;  ///< Empty: nobody has answered yet.
    bool refused = false;
  };

  void Ask(const std::shared_ptr<Job>& job);
  void CheckLog(const std::string& job_id);
  std::shared_ptr<coordinator::CallRecord> Call(const std::string& method,
                                                const std::string& object);
  /// What was answered with success was stored with its record.
  void Answered(const std::shared_ptr<coordinator::CallRecord>& call, bool changed);
  std::string SomeJob();

  Timeline& timeline_;
  Coordinator& coordinator_;
  Rules& rules_;
  const std::vector<std::string> workers_;
  const int64_t gpus_;
  const int64_t machines_;
  std::vector<std::shared_ptr<Job>> jobs_;
  std::set<std::string> deleted_;  ///< Perhaps.
  std::vector<std::shared_ptr<coordinator::CallRecord>> calls_;
};

}  // namespace weft::simulation
