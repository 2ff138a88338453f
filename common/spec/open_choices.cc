#include "common/spec/open_choices.h"

#include <string>
#include <utility>

#include "common/spec/offload.h"
#include "common/spec/technique_checks.h"

namespace weft {
namespace {

constexpr char kAuto[] = "auto";

/// `asked`, or each of `all` where that is left open.
std::vector<std::string> Values(const std::string& asked, std::vector<std::string> all) {
  return asked == kAuto ? std::move(all) : std::vector{asked};
}

bool LeavesOffload(const ResourceSpec& resources) {
  return resources.offload_optimizer == kAuto || resources.offload_parameters == kAuto ||
         resources.offload_activations == kAuto;
}

std::vector<ResourceSpec> OffloadChoices(const ResourceSpec& resources) {
  if (!LeavesOffload(resources)) return {resources};
  std::vector<std::string> places = {"none", "part", "host"};
  if (!resources.offload_directory.empty()) places.emplace_back("nvme");
  std::vector<ResourceSpec> choices;
  for (const std::string& optimizer : Values(resources.offload_optimizer, places)) {
    for (const std::string& parameters : Values(resources.offload_parameters, places)) {
      for (const std::string& activations :
           Values(resources.offload_activations, {"none", "host"})) {
        ResourceSpec choice = resources;
        choice.offload_optimizer = optimizer;
        choice.offload_parameters = parameters;
        choice.offload_activations = activations;
        const bool open =
            resources.offload_optimizer == kAuto || resources.offload_parameters == kAuto;
        if (open && optimizer != "nvme" && parameters != "nvme") choice.offload_directory.clear();
        if (!Offloads(choice)) choice.host_link_bytes_per_second = 0;
        choices.push_back(choice);
        if (resources.offload_activations == kAuto && activations == "host" &&
            resources.recompute == "auto") {
          choice.recompute = "optimal";
          choices.push_back(choice);
        }
      }
    }
  }
  return choices;
}

}  // namespace

bool LeavesChoices(const JobSpec& job) {
  return job.train.precision == kAuto || LeavesOffload(job.resources);
}

void DecideWithoutOffload(std::string ResourceSpec::*place, ResourceSpec& resources) {
  const bool open = resources.offload_optimizer == kAuto || resources.offload_parameters == kAuto;
  resources.*place = "none";
  const auto may_be_in_file = [](const std::string& of) { return of == "nvme" || of == kAuto; };
  if (open && !may_be_in_file(resources.offload_optimizer) &&
      !may_be_in_file(resources.offload_parameters)) {
    resources.offload_directory.clear();
  }
  if (!Offloads(resources) && !LeavesOffload(resources)) resources.host_link_bytes_per_second = 0;
}

std::vector<JobSpec> ChoicesOf(const JobSpec& job) {
  std::vector<std::string> precisions = {"fp32", "bf16", "fp16"};
  for (std::string& own : TechniquePrecisions()) precisions.push_back(std::move(own));
  const bool open = job.train.precision == kAuto;
  std::vector<JobSpec> choices;
  for (const std::string& precision : Values(job.train.precision, std::move(precisions))) {
    for (const ResourceSpec& resources : OffloadChoices(job.resources)) {
      JobSpec choice = job;
      choice.resources = resources;
      if (open) SetPrecision(choice, precision);
      choices.push_back(std::move(choice));
    }
  }
  return choices;
}

}  // namespace weft
