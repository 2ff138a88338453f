#pragma once

#include "worker/engine/tensor/host_memory_pool.h"
#include "worker/engine/train/step_report.h"

namespace weft::engine {

/// Separates, in the time of phases, how long the rank waited for the link to the host
/// memory pool.
class LinkStalls {
 public:
  /// Counts from now on, of `host`, or nothing where there is none.
  LinkStalls(HostMemoryPool* host, PhaseSeconds* seconds)
      : host_(host), seconds_(seconds), before_(Waited()) {}

  /// Moves the waits since the last call from `phase` to exposed communication.
  void Charge(double PhaseSeconds::*phase) {
    const double now = Waited();
    seconds_->*phase -= now - before_;
    seconds_->communication_exposed += now - before_;
    before_ = now;
  }

 private:
  double Waited() const {
    if (host_ == nullptr) return 0;
    return host_->down().totals().waited_seconds + host_->up().totals().waited_seconds;
  }

  HostMemoryPool* host_;
  PhaseSeconds* seconds_;
  double before_;
};

}  // namespace weft::engine
