#include "coordinator/scheduler/scheduler.h"

#include "coordinator/scheduler/pass.h"

namespace weft::coordinator {

SchedulerDecisions Schedule(const SchedulerSnapshot& snapshot, const PlanFunction& plan) {
  return SchedulingPass(snapshot, plan).Run();
}

std::vector<std::string> WouldStartNow(const SchedulerSnapshot& snapshot,
                                       const PlanFunction& plan) {
  return SchedulingPass(snapshot, plan).WouldStartNow();
}

}  // namespace weft::coordinator
