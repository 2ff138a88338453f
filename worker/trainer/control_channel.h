#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "worker/engine/comm/store.h"
#include "worker/trainer/reporter.h"

namespace weft::trainer {

/// The rank's end of the control channel: reports to the daemon, hears from it, and reaches the
/// rendezvous store through it. Two threads read and write, so that training never waits for the
/// daemon. Thread-safe.
class ControlChannel : public Reporter, public engine::Store {
 public:
  /// `fd` is a connected stream socket, which this closes. `gone` is called, on a thread of this
  /// object, when the daemon closes its end or says abort; it must not return.
  ControlChannel(int fd, void (*gone)(bool aborted));

  /// Waits until everything reported has been handed to the socket, ten seconds at most.
  ~ControlChannel() override;

  void Report(const RankMessage& message) override;
  bool StopRequested() override { return stop_; }
  int64_t TakeProfileRequest() override { return profile_steps_.exchange(0); }
  void WatchMembership(std::function<void(const MembershipMessage&)> told) override;

  /// Like a stop message. Safe in a signal handler.
  void RequestStop() { stop_ = true; }

  Status Set(const std::string& key, std::string_view value) override;
  Result<std::string> Get(const std::string& key, std::chrono::milliseconds timeout) override;

 private:
  /// Sends a store request, waits for its reply.
  Result<std::string> Ask(int64_t request_id, const RankMessage& request,
                          std::chrono::milliseconds timeout);
  void ReadLoop();
  void WriteLoop();
  void OnLine(std::string_view line);
  void OnMembership(MembershipMessage membership);
  bool WriteAll(std::string_view bytes);

  const int fd_;
  void (*gone_)(bool aborted);
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> profile_steps_{0};
  std::atomic<int64_t> next_request_{1};

  std::mutex membership_mutex_;  ///< Guards what follows, also during a call of the watcher.
  std::optional<MembershipMessage> membership_;
  std::function<void(const MembershipMessage&)> membership_watcher_;

  std::mutex mutex_;  ///< Guards what follows.
  std::condition_variable changed_;
  std::deque<std::string> outgoing_;
  bool writing_ = false;
  bool closing_ = false;
  bool broken_ = false;
  std::map<int64_t, StoreReplyMessage> replies_;

  std::thread writer_;
  std::thread reader_;
};

}  // namespace weft::trainer
