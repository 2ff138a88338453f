#include "common/spec/phase_search.h"

#include <algorithm>
#include <string>
#include <vector>

#include "common/spec/phases.h"

namespace weft {
namespace {

/// "phases[2].search.steps".
std::string FieldOf(size_t phase, const std::string& field) {
  return "phases[" + std::to_string(phase) + "].search." + field;
}

bool AllDifferent(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  return std::adjacent_find(values.begin(), values.end()) == values.end();
}

/// Whether the largest of these values, of this field, is that of the network which is planned: it
/// has all choices.
Status CheckLargest(const std::vector<int64_t>& values, int64_t largest, size_t phase,
                    const std::string& field, const std::string& what) {
  if (values.empty()) return OkStatus();
  const int64_t most = *std::max_element(values.begin(), values.end());
  if (most == largest) return OkStatus();
  return InvalidError(FieldOf(phase, field) + " has at most " + std::to_string(most) +
                      ", and the phase has " + std::to_string(largest) + " " + what +
                      "; hint: those of the phase are the largest choice");
}

/// Whether the choices are such that a power of the time can be fitted to their losses.
Status CheckChoices(const PhaseSearchSpec& search, const ModelSpec& model, size_t phase) {
  const std::vector<int64_t>&layers = search.layers, &images = search.image_sizes;
  if (!images.empty() && model.family != "vit") {
    return InvalidError(FieldOf(phase, "image_sizes") + " is for model.family vit, not " +
                        model.family);
  }
  const bool whole = std::all_of(images.begin(), images.end(), [&](int64_t size) {
    return size > 0 && size % model.patch_size == 0;
  });
  if (!whole || !AllDifferent(images)) {
    return InvalidError(FieldOf(phase, "image_sizes") +
                        " must be different multiples of model.patch_size " +
                        std::to_string(model.patch_size));
  }
  const bool positive =
      std::all_of(layers.begin(), layers.end(), [](int64_t count) { return count > 0; });
  WEFT_RETURN_IF_ERROR(CheckLargest(layers, model.layers, phase, "layers", "layers"));
  WEFT_RETURN_IF_ERROR(
      CheckLargest(images, model.image_size, phase, "image_sizes", "pixels a side"));
  if (!positive || !AllDifferent(layers) || PhaseSizes(search, model).size() < 3) {
    return InvalidError(FieldOf(phase, layers.empty() ? "image_sizes" : "layers") +
                        " must be three or more different numbers from 1 on, or fewer that make "
                        "three or more choices of layers and image_sizes together: any power of "
                        "the time goes through the losses of two");
  }
  return OkStatus();
}

/// How the model grows into the phase and out of the next, and in which way sizes return. Rows of
/// refusals cannot say it: they are asked of one phase at a time.
Status CheckGrowthAround(const JobSpec& job, size_t phase) {
  const PhaseSearchSpec& search = job.phases[phase].search;
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
  if (!search.layers.empty()) {
    // Their patterns are those of the largest choice.
    for (const bool of_next : {false, true}) {
      if (!job.phases[of_next ? phase + 1 : phase].growth.freeze_old) continue;
      return refuse(
          std::string("growth.freeze_old of the ") + (of_next ? "next" : "same") + " phase",
          "which blocks are old follows from the layers that are chosen; hint: choose "
          "from image_sizes alone, or leave freeze_old out");
    }
  }
  const std::string& next = job.phases[phase + 1].growth.method;
  const bool same_layers = next == "none" || next == "sparkling" || next == "msg";
  if (same_layers && !search.layers.empty()) {
    return refuse("growth.method " + next + " of the next phase",
                  "it knows how many layers were there before; hint: stack, fpi, aki or ligo");
  }
  if (next == "ligo" && !search.image_sizes.empty()) {
    return refuse("growth.method ligo of the next phase",
                  "it learns on images as they were, whose size is not known; hint: stack, fpi or "
                  "aki");
  }
  return OkStatus();
}

}  // namespace

std::vector<PhaseSize> PhaseSizes(const PhaseSearchSpec& search, const ModelSpec& model) {
  const auto values = [](const std::vector<int64_t>& chosen, int64_t own) {
    return chosen.empty() ? std::vector<int64_t>{own} : chosen;
  };
  std::vector<PhaseSize> sizes;
  for (const int64_t layers : values(search.layers, model.layers)) {
    for (const int64_t image_size : values(search.image_sizes, model.image_size)) {
      sizes.push_back({layers, image_size});
    }
  }
  return sizes;
}

JobSpec WithSize(const JobSpec& phase, const PhaseSize& size) {
  JobSpec job = phase;
  job.model.layers = size.layers;
  job.model.image_size = size.image_size;
  return job;
}

double SearchFlopsShare(const JobSpec& job, size_t phase) {
  const PhaseSearchSpec& search = job.phases[phase].search;
  if (search.steps == 0) return 1;
  const JobSpec largest = JobOfPhase(job, phase);
  double mean = 0;
  const std::vector<PhaseSize> sizes = PhaseSizes(search, largest.model);
  for (const PhaseSize& size : sizes) {
    mean += StepFlops(WithSize(largest, size)) / static_cast<double>(sizes.size());
  }
  const auto of_search =
      static_cast<double>(search.steps) / static_cast<double>(largest.train.steps);
  return 1 - of_search * (1 - mean / StepFlops(largest));
}

Status CheckSearch(const JobSpec& job, size_t phase) {
  const PhaseSearchSpec& search = job.phases[phase].search;
  if (search.steps == 0) {
    if (search.layers.empty() && search.image_sizes.empty()) return OkStatus();
    return InvalidError(FieldOf(phase, search.layers.empty() ? "image_sizes" : "layers") +
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
  WEFT_RETURN_IF_ERROR(CheckChoices(search, JobOfPhase(job, phase).model, phase));
  return CheckGrowthAround(job, phase);
}

}  // namespace weft
