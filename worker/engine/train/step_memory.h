#pragma once

#include <cstdint>

#include "common/status.h"
#include "worker/engine/tensor/allocator.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/train/step_report.h"

namespace weft::engine {

/// What a rank held in memory up to the end of a step: on the device, in the host memory pool and
/// in files. Not thread-safe.
class StepMemory {
 public:
  /// Adds it to the report. `collectives`: bytes that they keep, which no Allocator gave them and
  /// which count from now on. kExhausted where there is no room for these.
  Status Report(Context& context, int64_t collectives, StepReport& report);

 private:
  void ReportTiers(const Context& context, StepReport& report);

  ExternalBytes communication_;
  double waited_ = 0;  ///< Seconds for the host memory pool, up to the last report.
};

}  // namespace weft::engine
