#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "common/status.h"

namespace weft::coordinator {

/// Where the ranks of one attempt meet: keys and values in memory, kept until the attempt ends.
/// Not thread-safe.
///
/// What an attempt may take is bounded by the number of its ranks. In a group of n ranks that talk
/// over TCP each sets about 150 bytes for each other one, so that a world of 1,024 ranks takes 160
/// MB and those that its axes split it into take less; they may take three times that much. Ranks
/// that come and go meet again and again: 64 MiB are for them.
class Rendezvous {
 public:
  using Reply = std::function<void(Result<std::string>)>;

  static constexpr int64_t kMostValueBytes = int64_t{1} << 20;
  static constexpr int64_t kMostKeyBytes = int64_t{1} << 10;
  static constexpr int64_t kMostKeys = int64_t{1} << 16;
  /// Of keys and values of an attempt.
  static constexpr int64_t MostBytes(int64_t ranks) {
    return (int64_t{64} << 20) + 512 * ranks * ranks;
  }
  /// A rank waits for a key or two at a time.
  static constexpr int64_t MostWaiters(int64_t ranks) { return 64 + 16 * ranks; }

  /// Sets a key, and answers those who wait for it. kExhausted past one of the limits.
  Status Set(const std::string& job_id, int64_t epoch, int64_t ranks, const std::string& key,
             std::string value);

  /// Answers with the value, at once or when it is set, and with kExhausted when too many wait
  /// already. Returns a ticket for Expire, 0 when the answer has been given.
  int64_t Get(const std::string& job_id, int64_t epoch, int64_t ranks, const std::string& key,
              Reply reply);

  /// The wait is over: answers with kUnavailable unless it has been answered.
  void Expire(int64_t ticket);

  /// The attempt has ended: forgets its keys and answers its waiters with kAborted.
  void Drop(const std::string& job_id, int64_t epoch);

 private:
  using Attempt = std::pair<std::string, int64_t>;
  struct Meeting {
    std::map<std::string, std::string> values;
    int64_t bytes = 0;  ///< Of keys and values.
    int64_t waiters = 0;
  };
  struct Waiter {
    Attempt attempt;
    std::string key;
    Reply reply;
  };

  std::map<Attempt, Meeting> meetings_;
  std::map<int64_t, Waiter> waiters_;
  int64_t last_ticket_ = 0;
};

}  // namespace weft::coordinator
