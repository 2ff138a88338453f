#pragma once

#include <string>
#include <vector>

#include "common/status.h"
#include "weft/v1/worker.pb.h"

namespace weft::daemon {

/// What became of an attempt that has ended, as far as the coordinator does not know.
struct UnsentAttempt {
  v1::RunningAttempt running;                     ///< Without ranks, with its last progress.
  std::vector<v1::CheckpointReport> checkpoints;  ///< The newest.
  std::vector<v1::AttemptReport> reports;         ///< Not acknowledged, oldest first.
};

/// Whether `ack` is of `report`: of ranks that are on a worker one after the other, only those that
/// it names.
bool Answers(const v1::AttemptAck& ack, const v1::AttemptReport& report);

/// Ends of attempts that a daemon could not report before it ended itself, because the coordinator
/// was away. They are kept in its data folder, and the next daemon there reports them: ranks that
/// saved and stopped did not die. Their log lines are lost.
class UnsentReports {
 public:
  /// Reads what the daemon before has left. A file that is damaged counts as none, with a warning.
  /// An empty path: nothing is kept.
  explicit UnsentReports(std::string path);

  const std::vector<UnsentAttempt>& attempts() const { return attempts_; }
  /// The report up to this one is known, and those before it.
  void Acknowledge(const v1::AttemptAck& ack);
  /// Leaves these for the next daemon, with those that are still not acknowledged.
  void Keep(std::vector<UnsentAttempt> attempts);

 private:
  void Write(const std::vector<UnsentAttempt>& attempts);

  std::string path_;
  std::vector<UnsentAttempt> attempts_;
};

}  // namespace weft::daemon
