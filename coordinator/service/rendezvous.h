#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"

namespace weft::coordinator {

/// Where the ranks of one attempt meet: keys and values in memory, kept until the attempt ends.
/// Not thread-safe.
class Rendezvous {
 public:
  using Reply = std::function<void(Result<std::string>)>;

  /// Sets a key, and answers those who wait for it. kExhausted past 1 MiB a value or 65536 keys.
  Status Set(const std::string& job_id, int64_t epoch, const std::string& key, std::string value);

  /// Answers with the value, at once or when it is set. Returns a ticket for Expire, 0 when the
  /// answer has been given.
  int64_t Get(const std::string& job_id, int64_t epoch, const std::string& key, Reply reply);

  /// The wait is over: answers with kUnavailable unless it has been answered.
  void Expire(int64_t ticket);

  /// The attempt has ended: forgets its keys and answers its waiters with kAborted.
  void Drop(const std::string& job_id, int64_t epoch);

 private:
  using Attempt = std::pair<std::string, int64_t>;
  struct Waiter {
    Attempt attempt;
    std::string key;
    Reply reply;
  };

  std::map<Attempt, std::map<std::string, std::string>> values_;
  std::map<int64_t, Waiter> waiters_;
  int64_t last_ticket_ = 0;
};

}  // namespace weft::coordinator
