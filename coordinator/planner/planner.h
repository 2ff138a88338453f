#pragma once

#include <cstddef>
#include <stop_token>
#include <string>
#include <vector>

#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"
#include "common/spec/plan.h"
#include "common/status.h"
#include "coordinator/planner/job_check.h"

namespace weft::planner {

/// Finds how to run `job` on `cluster`: tries every number of ranks that divides the batch, how
/// they spread over workers, threads per rank, micro-batch and, where memory is short, the least
/// number of recomputed blocks, with every choice that the job leaves open (ChoicesOf), and ranks
/// them by predicted step time. Candidates come best first,
/// the first one chosen, then some that do not fit, each with its reason. Pure and deterministic:
/// the same arguments give the same report; planning_seconds is left to the caller. Sizes of an
/// imported model must have been put into job.model before.
/// On GPUs, where the job wants them or leaves the choice and workers have some, each rank has one
/// of its own, neighbours near each other (common/model/device_order.h), and the memory is that
/// GPU's; GPUs that do not multiply the format of a precision take no job of it. kInvalid: the job
/// contradicts itself. kUnavailable: no workers. kExhausted: nothing fits; the message says the
/// smallest need. kAborted, soon after a request to `stop`.
Result<PlanReport> PlanJob(const JobSpec& job, const ClusterProfile& cluster,
                           const std::stop_token& stop = {});

/// Plans like PlanJob, among the choices that pass `check`. kInvalid, as it says, where none does.
Result<PlanReport> PlanJobPassing(const JobSpec& job, const ClusterProfile& cluster,
                                  const JobCheck& check, const std::stop_token& stop = {});

/// Plans like PlanJobPassing, and finds the mesh where the job leaves that open (MeshesOf), with
/// plans left out that provably are not among those shown. Computes on `threads` threads (0: as
/// many as the machine runs); the report does not depend on their number. The same errors.
Result<PlanReport> PlanAnyMesh(const JobSpec& job, const ClusterProfile& cluster, int threads = 0,
                               const std::stop_token& stop = {},
                               const JobCheck& check = ValidateJob);

/// The fastest plans that PlanJobPassing, or with `any_mesh` PlanAnyMesh, finds to fit, up to
/// `count`; of those that differ in nothing but their machines' ranks the fastest. The same errors,
/// but none where nothing fits.
Result<std::vector<Plan>> FastestPlans(const JobSpec& job, const ClusterProfile& cluster,
                                       bool any_mesh, size_t count,
                                       const JobCheck& check = ValidateJob);

/// The report for people: the chosen plan with memory by component and where the time goes, then
/// the candidates and why they lost. Ends with a newline.
std::string FormatPlanReport(const PlanReport& report);

}  // namespace weft::planner
