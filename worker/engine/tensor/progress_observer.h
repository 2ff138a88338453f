#pragma once

namespace weft::engine {

/// Hears of what a rank does in the midst of a long step, evaluation or start, so that others can
/// find out whether it hangs. Thread-safe: other threads do parts of updates.
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
