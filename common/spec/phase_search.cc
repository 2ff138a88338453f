#include "common/spec/phase_search.h"

#include <algorithm>
#include <string>

#include "common/spec/phases.h"

namespace weft {
namespace {

/// "phases[2].search.steps".
std::string FieldOf(size_t phase, const std::string& field) {
  return "phases[" + std::to_string(phase) + "].search." + field;
}

/// Whether the choices are such that a power of the time can be fitted to their losses, and the
/// network that is planned has them all.
Status CheckChoices(const PhaseSearchSpec& search, int64_t largest, size_t phase) {
  std::vector<int64_t> layers = search.layers;
  std::sort(layers.begin(), layers.end());
  const bool distinct = std::adjacent_find(layers.begin(), layers.end()) == layers.end();
  if (layers.size() < 3 || !distinct || layers.front() < 1) {
    return InvalidError(FieldOf(phase, "layers") +
                        " must be three or more different numbers from 1 on: any power of the time "
                        "goes through the losses of two");
  }
  if (layers.back() != largest) {
    return InvalidError(FieldOf(phase, "layers") + " has at most " + std::to_string(layers.back()) +
                        ", and the phase has " + std::to_string(largest) +
                        " layers; hint: those of the phase are the largest choice");
  }
  return OkStatus();
}

/// How the model grows into the phase and out of the next, and in which way sizes return. Rows of
/// refusals cannot say it: they are asked of one phase at a time.
Status CheckGrowthAround(const JobSpec& job, size_t phase) {
  const auto refuse = [&](const std::string& what, const std::string& because) {
    return InvalidError(FieldOf(phase, "steps") + " does not go with " + what + ", because " +
                        because);
  };
  for (const PhaseSpec& other : job.phases) {
    const std::string& method = other.growth.method;
    if (method == "coalesce" || method == "decoalesce") {
      return refuse("growth.method " + method, "levels return to sizes that are known");
    }
  }
  if (MaskedGrowthOf(JobOfPhase(job, phase))) {
    return refuse("growth.method msg", "masks are for one number of layers");
  }
  const std::string& next = job.phases[phase + 1].growth.method;
  if (next == "none" || next == "sparkling" || next == "msg") {
    return refuse("growth.method " + next + " of the next phase",
                  "it knows how many layers were there before; hint: stack, fpi, aki or ligo");
  }
  return OkStatus();
}

}  // namespace

bool SearchesSizes(const JobSpec& job) {
  return std::any_of(job.phases.begin(), job.phases.end(),
                     [](const PhaseSpec& phase) { return phase.search.steps > 0; });
}

Status CheckSearch(const JobSpec& job, size_t phase) {
  const PhaseSearchSpec& search = job.phases[phase].search;
  if (search.steps == 0) {
    if (search.layers.empty()) return OkStatus();
    return InvalidError(FieldOf(phase, "layers") +
                        " is given and search.steps is not; hint: the steps that try them");
  }
  if (search.steps >= job.phases[phase].steps) {
    return InvalidError(FieldOf(phase, "steps") + " " + std::to_string(search.steps) +
                        " must be less than the steps of the phase, " +
                        std::to_string(job.phases[phase].steps));
  }
  if (phase + 1 == job.phases.size()) {
    return InvalidError(FieldOf(phase, "steps") +
                        ": the last phase trains model, and has nothing to choose");
  }
  WEFT_RETURN_IF_ERROR(CheckChoices(search, JobOfPhase(job, phase).model.layers, phase));
  return CheckGrowthAround(job, phase);
}

}  // namespace weft
