#pragma once

#include <stop_token>
#include <string>
#include <vector>

#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"
#include "coordinator/planner/job_check.h"
#include "coordinator/planner/report/explanation.h"

namespace weft::planner {

/// Every way to spread the job or to save memory that changes no numbers, each by itself added to
/// `job` where that does not have it: its best plan next to the chosen one's `best` (null: nothing
/// fits), or the first reason why it does not go, as `check` says. Those that fit first, fastest
/// first; then those that do not fit, then those that the job does not allow. Of no use after a
/// request to `stop`.
std::vector<Alternative> AlternativesOf(const JobSpec& job, const ClusterProfile& cluster,
                                        const Prediction* best, const JobCheck& check = ValidateJob,
                                        const std::stop_token& stop = {});

/// "resources.zero_stage: 1 (2.1 GiB per rank), or ...": those that fit, at most three; empty where
/// none does.
std::string WhatWouldFit(const std::vector<Alternative>& alternatives);

}  // namespace weft::planner
