#include "coordinator/scheduler/scheduler.h"

#include "coordinator/scheduler/pass.h"

namespace weft::coordinator {

SchedulerDecisions Schedule(const SchedulerSnapshot& snapshot, const PlanFunction& plan) {
  return SchedulingPass(snapshot, plan).Run();
}

}  // namespace weft::coordinator
