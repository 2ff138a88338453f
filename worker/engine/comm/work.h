#pragma once

#include <memory>
#include <utility>

#include "common/status.h"
#include "kernels/stream.h"

namespace weft::engine {

/// An operation of a group under way: what Collective's operations return. Copies stand for the
/// same operation. The tensors of the operation belong to it until a Wait has returned; whoever
/// drops a Work without waiting keeps them until the group is gone.
class Work {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual Status Wait(const Stream& stream) = 0;
    virtual Status WaitUncounted(const Stream& stream) { return Wait(stream); }
    /// Whether Wait would return at once, as far as that is known.
    virtual bool Done() { return false; }
  };

  /// Nothing to wait for: done, or refused for `status`.
  Work() = default;
  explicit Work(Status status) : status_(std::move(status)) {}
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// Makes what is done on `stream` from now on find the operation done. On a CPU this blocks the
  /// caller until it is; on a CUDA device the stream waits and the host goes on, so that an error
  /// may come to light only in a later call. Any number of times, from any thread.
  Status Wait(const Stream& stream) const { return state_ ? state_->Wait(stream) : status_; }

  /// The same on a stream, or in a thread, besides those of the rank: their waiting is no exposed
  /// time.
  Status WaitUncounted(const Stream& stream) const {
    return state_ ? state_->WaitUncounted(stream) : status_;
  }

  /// The operation is known to be over, well or not. False may mean that nobody knows: on a CUDA
  /// device.
  bool Done() const { return !state_ || state_->Done(); }

 private:
  Status status_;
  std::shared_ptr<State> state_;
};

}  // namespace weft::engine
