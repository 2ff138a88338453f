#pragma once

namespace weft::engine {

/// Is told what a rank does in the midst of something long, for those who find out whether it
/// hangs: a step, an evaluation, a start. Thread-safe: parts of updates are done by other threads.
class ProgressObserver {
 public:
  virtual ~ProgressObserver() = default;

  /// A part of the work is done. Called often, also where the work has only been enqueued on a
  /// device; not by what waits for other ranks.
  virtual void OnProgress() = 0;

  /// Ranks that train by themselves begin to exchange what they have learned, or have done so.
  virtual void OnExchange(bool begins) = 0;
};

}  // namespace weft::engine
