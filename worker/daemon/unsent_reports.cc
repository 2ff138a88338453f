#include "worker/daemon/unsent_reports.h"

#include <google/protobuf/util/delimited_message_util.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "common/env.h"
#include "common/log.h"

namespace weft::daemon {
namespace {

constexpr uint64_t kMostBytes = uint64_t{16} << 20;

/// An attempt begins with what heartbeats say of it; its reports follow.
std::string Encode(const std::vector<UnsentAttempt>& attempts) {
  std::ostringstream text;
  const auto add = [&](const v1::WorkerMessage& message) {
    google::protobuf::util::SerializeDelimitedToOstream(message, &text);
  };
  for (const UnsentAttempt& attempt : attempts) {
    v1::WorkerMessage first;
    *first.mutable_heartbeat()->add_running() = attempt.running;
    add(first);
    for (const v1::CheckpointReport& checkpoint : attempt.checkpoints) {
      v1::WorkerMessage message;
      *message.mutable_checkpoint() = checkpoint;
      add(message);
    }
    for (const v1::AttemptReport& report : attempt.reports) {
      v1::WorkerMessage message;
      *message.mutable_attempt() = report;
      add(message);
    }
  }
  return std::move(text).str();
}

Result<std::vector<UnsentAttempt>> Decode(const std::string& text) {
  google::protobuf::io::ArrayInputStream stream(text.data(), static_cast<int>(text.size()));
  std::vector<UnsentAttempt> attempts;
  while (true) {
    v1::WorkerMessage message;
    bool at_end = false;
    if (!google::protobuf::util::ParseDelimitedFromZeroCopyStream(&message, &stream, &at_end)) {
      if (at_end) return attempts;
      return CorruptError("it is cut off or damaged");
    }
    if (message.has_heartbeat() && message.heartbeat().running_size() == 1) {
      attempts.push_back({message.heartbeat().running(0), {}, {}});
    } else if (attempts.empty()) {
      return CorruptError("it does not begin with an attempt");
    } else if (message.has_checkpoint()) {
      attempts.back().checkpoints.push_back(message.checkpoint());
    } else if (message.has_attempt()) {
      attempts.back().reports.push_back(message.attempt());
    }
  }
}

}  // namespace

bool Answers(const v1::AttemptAck& ack, const v1::AttemptReport& report) {
  return ack.job_id() == report.job_id() && ack.epoch() == report.epoch() &&
         ack.state() == report.state() && ack.has_first_rank() == report.has_first_rank() &&
         ack.first_rank() == report.first_rank();
}

UnsentReports::UnsentReports(std::string path) : path_(std::move(path)) {
  if (path_.empty() || !Env::Posix().FileExists(path_)) return;
  const Result<std::string> text = ReadFile(Env::Posix(), path_, kMostBytes);
  Result<std::vector<UnsentAttempt>> attempts =
      text.ok() ? Decode(*text) : Result<std::vector<UnsentAttempt>>(text.status());
  if (attempts.ok()) {
    attempts_ = std::move(*attempts);
  } else {
    WEFT_LOG_WARNING << "the reports that an earlier worker left in " << path_
                     << " cannot be read: " << attempts.status().message();
  }
}

void UnsentReports::Acknowledge(const v1::AttemptAck& ack) {
  const auto attempt = std::find_if(attempts_.begin(), attempts_.end(), [&](const auto& each) {
    return each.running.job_id() == ack.job_id() && each.running.epoch() == ack.epoch();
  });
  if (attempt == attempts_.end()) return;
  const auto named =
      std::find_if(attempt->reports.begin(), attempt->reports.end(),
                   [&](const v1::AttemptReport& report) { return Answers(ack, report); });
  if (named == attempt->reports.end()) return;
  attempt->reports.erase(attempt->reports.begin(), named + 1);
  if (attempt->reports.empty()) attempts_.erase(attempt);
  Write(attempts_);
}

void UnsentReports::Keep(std::vector<UnsentAttempt> attempts) {
  attempts.insert(attempts.begin(), attempts_.begin(), attempts_.end());
  Write(attempts);
}

void UnsentReports::Write(const std::vector<UnsentAttempt>& attempts) {
  if (path_.empty()) return;
  Env& env = Env::Posix();
  Status status;
  if (!attempts.empty()) {
    status = WriteFileAtomic(env, path_, Encode(attempts));
  } else if (env.FileExists(path_)) {
    status = env.RemoveFile(path_);
  }
  if (!status.ok()) {
    WEFT_LOG_WARNING << "the reports of attempts that have ended: " << status.message();
  }
}

}  // namespace weft::daemon
