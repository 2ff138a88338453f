#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/env.h"
#include "coordinator/scheduler/decision_record.h"

namespace weft::coordinator {

/// The newest passes of the scheduler that decided something, in a ring of files: numbered, each
/// readable by itself with ReplayDecisions, the oldest deleted first. Not durable, and what cannot
/// be written is left out with a warning. Not thread-safe.
class DecisionLog {
 public:
  /// A pass over more jobs that wait is not recorded: its line would take as long as the pass.
  static constexpr int64_t kMostWaiting = 2000;

  /// `folder`: of the files; "" or no bytes: nothing is recorded. The files take `most_bytes` and
  /// one line.
  DecisionLog(Env& env, std::string folder, int64_t most_bytes);

  bool enabled() const { return !folder_.empty() && most_bytes_ > 0; }
  /// `answers`: of Recording, over the pass. Leaves out what decided nothing.
  void Record(const SchedulerSnapshot& snapshot, const PlanAnswers& answers,
              const SchedulerDecisions& decisions);

 private:
  Status Write(const std::string& line);
  Status NextFile();

  Env& env_;
  const std::string folder_;
  const int64_t most_bytes_;
  PassWriter writer_;  ///< Of the present file.
  std::unique_ptr<WritableFile> file_;
  int64_t file_bytes_ = 0;
  int64_t next_number_ = 0;  ///< Of the next file; 0: the folder has not been looked at.
  bool failed_ = false;      ///< It was said.
};

}  // namespace weft::coordinator
