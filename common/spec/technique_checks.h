#pragma once

#include <string>
#include <vector>

#include "common/spec/compatibility.h"
#include "common/spec/job_spec.h"
#include "common/status.h"

// What validation asks techniques. Defined where all of them are known
// (common/model/technique_cost.h).
namespace weft {

/// kInvalid where the fields of a technique do not fit each other, or where a pattern of
/// model.freeze or optimizer.groups names nothing.
Status CheckTechniques(const JobSpec& job);

/// The combinations that techniques refuse, in the order of their registry.
std::vector<Refusal> TechniqueRefusals();

/// The precisions that techniques add to those among which train.precision auto chooses.
std::vector<std::string> TechniquePrecisions();

/// Gives `job` this precision, and fields of others their defaults.
void SetPrecision(JobSpec& job, const std::string& precision);

}  // namespace weft
