#include "coordinator/service/rendezvous.h"

#include <iterator>
#include <utility>

#include "common/text.h"

namespace weft::coordinator {
namespace {

Status LimitError(const std::string& job_id, const std::string& key, const std::string& limit) {
  return ExhaustedError("rendezvous of job " + job_id + ": key '" + ClipText(key) +
                        "' is past the limit of " + limit +
                        "; hint: a new attempt at the job begins with none");
}

}  // namespace

Status Rendezvous::Set(const std::string& job_id, int64_t epoch, int64_t ranks,
                       const std::string& key, std::string value) {
  const Attempt attempt(job_id, epoch);
  Meeting& meeting = meetings_[attempt];
  const auto before = meeting.values.find(key);
  const bool is_new = before == meeting.values.end();
  if (std::ssize(value) > kMostValueBytes || std::ssize(key) > kMostKeyBytes) {
    return LimitError(job_id, key, "1 MiB a value and 1 KiB a key");
  }
  if (is_new && std::ssize(meeting.values) >= kMostKeys) {
    return LimitError(job_id, key, std::to_string(kMostKeys) + " keys");
  }
  const int64_t bytes =
      meeting.bytes + std::ssize(value) + (is_new ? std::ssize(key) : -std::ssize(before->second));
  if (bytes > MostBytes(ranks)) {
    return LimitError(
        job_id, key,
        std::to_string(MostBytes(ranks)) + " bytes for " + std::to_string(ranks) + " ranks");
  }
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    if (it->second.attempt == attempt && it->second.key == key) {
      it->second.reply(value);
      --meeting.waiters;
      it = waiters_.erase(it);
    } else {
      ++it;
    }
  }
  meeting.bytes = bytes;
  meeting.values[key] = std::move(value);
  return OkStatus();
}

int64_t Rendezvous::Get(const std::string& job_id, int64_t epoch, int64_t ranks,
                        const std::string& key, Reply reply) {
  const Attempt attempt(job_id, epoch);
  Meeting& meeting = meetings_[attempt];
  if (const auto value = meeting.values.find(key); value != meeting.values.end()) {
    reply(value->second);
    return 0;
  }
  if (meeting.waiters >= MostWaiters(ranks) || std::ssize(key) > kMostKeyBytes) {
    reply(LimitError(job_id, key,
                     "1 KiB a key and " + std::to_string(MostWaiters(ranks)) +
                         " waits at a time for " + std::to_string(ranks) + " ranks"));
    return 0;
  }
  ++meeting.waiters;
  waiters_[++last_ticket_] = {attempt, key, std::move(reply)};
  return last_ticket_;
}

void Rendezvous::Expire(int64_t ticket) {
  auto it = waiters_.find(ticket);
  if (it == waiters_.end()) return;
  --meetings_[it->second.attempt].waiters;
  it->second.reply(UnavailableError("no rank set the key '" + it->second.key + "' in time"));
  waiters_.erase(it);
}

void Rendezvous::Drop(const std::string& job_id, int64_t epoch) {
  const Attempt attempt(job_id, epoch);
  meetings_.erase(attempt);
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    if (it->second.attempt == attempt) {
      it->second.reply(AbortedError("the attempt is over"));
      it = waiters_.erase(it);
    } else {
      ++it;
    }
  }
}

}  // namespace weft::coordinator
