#pragma once

#include <stop_token>

#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"
#include "common/spec/plan_query.h"
#include "common/status.h"
#include "coordinator/planner/report/explanation.h"

namespace weft::planner {

/// PlanJob (or PlanAnyMesh) under the wishes of `query`, and what speaks for and against its plans.
/// With `query.phase` of that phase of `job`: plans that it refuses are left out. Pure and
/// deterministic as they are; kAborted, soon after a request to `stop`. kInvalid also: a goal
/// without the prices it needs. kExhausted: nothing fits, or nothing keeps the wishes; the message
/// says which one, by how much, and which changes of the job would do.
Result<PlanExplanation> ExplainPlan(const JobSpec& job, const ClusterProfile& cluster,
                                    const PlanQuery& query, const std::stop_token& stop = {});

/// The explanation for people: FormatPlanReport and all else as tables. Ends with a newline.
std::string FormatExplanation(const PlanExplanation& explanation);

/// The frontier alone. Ends with a newline.
std::string FormatFrontier(const PlanExplanation& explanation);

/// One page of XHTML with all charts in it, that needs nothing else: what it is loads nothing,
/// runs nothing, and is readable in light, in dark and in print. All text of users is escaped.
std::string HtmlReport(const PlanExplanation& explanation);

}  // namespace weft::planner
