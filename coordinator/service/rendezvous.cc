#include "coordinator/service/rendezvous.h"

namespace weft::coordinator {

Status Rendezvous::Set(const std::string& job_id, int64_t epoch, const std::string& key,
                       std::string value) {
  constexpr size_t kMaxValueBytes = size_t{1} << 20;
  constexpr size_t kMaxKeys = size_t{1} << 16;
  Attempt attempt(job_id, epoch);
  auto& values = values_[attempt];
  if (value.size() > kMaxValueBytes || values.size() >= kMaxKeys) {
    return ExhaustedError("rendezvous of job " + job_id + ": key '" + key +
                          "' is past the limit of 1 MiB a value and 65536 keys");
  }
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    if (it->second.attempt == attempt && it->second.key == key) {
      it->second.reply(value);
      it = waiters_.erase(it);
    } else {
      ++it;
    }
  }
  values[key] = std::move(value);
  return OkStatus();
}

int64_t Rendezvous::Get(const std::string& job_id, int64_t epoch, const std::string& key,
                        Reply reply) {
  Attempt attempt(job_id, epoch);
  if (auto it = values_.find(attempt); it != values_.end()) {
    if (auto value = it->second.find(key); value != it->second.end()) {
      reply(value->second);
      return 0;
    }
  }
  waiters_[++last_ticket_] = {attempt, key, std::move(reply)};
  return last_ticket_;
}

void Rendezvous::Expire(int64_t ticket) {
  auto it = waiters_.find(ticket);
  if (it == waiters_.end()) return;
  it->second.reply(UnavailableError("no rank set the key '" + it->second.key + "' in time"));
  waiters_.erase(it);
}

void Rendezvous::Drop(const std::string& job_id, int64_t epoch) {
  Attempt attempt(job_id, epoch);
  values_.erase(attempt);
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
