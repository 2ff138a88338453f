#pragma once

#include <cstdint>
#include <string>

#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"
#include "common/status.h"
#include "coordinator/planner/job_check.h"
#include "coordinator/planner/report/explanation.h"

namespace weft::planner {

/// Why steps of such a job teach nothing of others; empty where they do.
std::string WhyTeachesNothing(const JobSpec& job);

/// The `count` plans of `job` that say most about the fastest kPlansInDoubt together, if they are
/// measured, one after the other (RunsInDoubt), after what is known of runs on these machines; each
/// with a job that runs so for some seconds. Fewer where there are fewer. kInvalid: nothing is
/// learned of such runs, which the message explains.
Result<MeasureAdvice> AdviseToMeasure(const JobSpec& job, const ClusterProfile& cluster,
                                      bool any_mesh, int64_t count,
                                      const JobCheck& check = ValidateJob);

inline constexpr size_t kPlansInDoubt = 200;

/// The advice for people. Ends with a newline.
std::string FormatMeasure(const PlanExplanation& explanation);

}  // namespace weft::planner
