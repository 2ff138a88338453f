#include "worker/engine/train/step_memory.h"

#include <utility>

#include "worker/engine/tensor/host_memory_pool.h"

namespace weft::engine {

Status StepMemory::Report(Context& context, int64_t collectives, StepReport& report) {
  if (collectives > 0) {
    WEFT_RETURN_IF_ERROR(
        communication_.Set(context.allocator, Component::kCommunication, collectives));
  }
  report.peak_memory = context.allocator->Peaks();
  report.step_memory = context.allocator->TakeRecentPeaks();
  ReportTiers(context, report);
  return OkStatus();
}

void StepMemory::ReportTiers(const Context& context, StepReport& report) {
  report.tiers.device_bytes = TotalBytes(report.step_memory);
  HostMemoryPool* pool = context.host;
  if (pool == nullptr) return;
  Allocator& host = pool->allocator();
  report.device_memory = report.peak_memory;
  AddTo(report.peak_memory, host.Peaks());
  const MemoryBreakdown held = host.TakeRecentPeaks();
  AddTo(report.step_memory, held);
  report.tiers.host_bytes = TotalBytes(held);
  report.tiers.file_bytes = pool->files().bytes;
  const double waited = pool->WaitedSeconds();
  report.tiers.stall_seconds = waited - std::exchange(waited_, waited);
}

}  // namespace weft::engine
