#pragma once

#include <functional>

#include "worker/trainer/control.h"

namespace weft::trainer {

/// What an attempt reports to, and who may ask it to stop. Thread-safe: checkpoints report
/// from a thread of their own.
class Reporter {
 public:
  virtual ~Reporter() = default;

  virtual void Report(const RankMessage& message) = 0;

  /// Asked after every step, on every rank; one rank that is asked to stop stops all.
  virtual bool StopRequested() = 0;

  /// Steps that were asked to be recorded since the last call, 0 for none. Asked after every step,
  /// on rank 0.
  virtual int64_t TakeProfileRequest() { return 0; }

  /// Calls `told` with the newest membership, if there is one, and with each that comes, on any
  /// thread and one at a time, until this is called again; then no call is under way. Null: nobody.
  virtual void WatchMembership(
      [[maybe_unused]] std::function<void(const MembershipMessage&)> told) {}
};

}  // namespace weft::trainer
