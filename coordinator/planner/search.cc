#include "coordinator/planner/search.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "common/spec/offload.h"
#include "common/spec/open_choices.h"
#include "coordinator/planner/best_first.h"
#include "coordinator/planner/cluster/on_threads.h"
#include "coordinator/planner/device_model.h"
#include "coordinator/planner/device_units.h"
#include "coordinator/planner/meshes.h"

namespace weft::planner {
namespace {

/// Faster; then fewer ranks, less recomputation, less memory, fewer threads.
bool Faster(const CostedPlan& a, const CostedPlan& b) {
  const double time_a = StepSeconds(a.time), time_b = StepSeconds(b.time);
  const int64_t bytes_a = TotalBytes(a.memory), bytes_b = TotalBytes(b.memory);
  return std::tie(time_a, a.ranks, a.recomputed_blocks, bytes_a, a.threads, a.micro_batch,
                  b.ranks_per_worker) < std::tie(time_b, b.ranks, b.recomputed_blocks, bytes_b,
                                                 b.threads, b.micro_batch, a.ranks_per_worker);
}

bool Smaller(const CostedPlan& a, const CostedPlan& b) {
  const int64_t bytes_a = TotalBytes(a.memory), bytes_b = TotalBytes(b.memory);
  return std::tie(bytes_a, a.ranks, a.threads, a.micro_batch, a.ranks_per_worker) <
         std::tie(bytes_b, b.ranks, b.threads, b.micro_batch, b.ranks_per_worker);
}

/// Keeps the head of the list, in order.
template <class Before>
void SortHead(std::vector<CostedPlan>& options, size_t count, Before before) {
  const auto head = options.begin() + static_cast<int64_t>(std::min(options.size(), count));
  std::partial_sort(options.begin(), head, options.end(), before);
  options.erase(head, options.end());
}

/// Where times come from, for the first kind of machine that does not just have its measurements.
std::string TimesFrom(const WorkerGroups& workers) {
  for (size_t kind = 0; kind < workers.kind_count(); ++kind) {
    if (std::string source = workers.rates(kind).Source(); !source.empty()) return source;
  }
  return "";
}

/// What `check` says of the first of `choices` that is valid and does not pass; of the first one,
/// where there is none.
Status WhyNone(const std::vector<JobSpec>& choices, const JobCheck& check) {
  for (const JobSpec& choice : choices) {
    if (!ValidateJob(choice).ok()) continue;
    if (Status refused = check(choice); !refused.ok()) return refused;
  }
  return check(choices.front());
}

}  // namespace

ClusterProfile WithoutUnfit(const JobSpec& job, ClusterProfile cluster) {
  const PrecisionRecipe* recipe = FindPrecision(job.train.precision);
  const ProductFormat* format = recipe != nullptr ? recipe->block_products : nullptr;
  if (format == nullptr) return cluster;
  for (WorkerProfile& worker : cluster.workers) {
    for (DeviceSpec& device : worker.devices) {
      if (!device.unusable.empty() || Multiplies(device, *format)) continue;
      device.unusable = "it has no " + std::string(format->name) +
                        " products (compute capability " + device.compute_capability +
                        ", and they need " + std::string(format->compute_capability) +
                        "), which train.precision: " + std::string(GemmRateName(recipe->products)) +
                        " does without";
    }
  }
  return cluster;
}

Result<JobSet> JobsOf(const JobSpec& job, const ClusterProfile& cluster, bool any_mesh,
                      const JobCheck& check) {
  JobSet jobs;
  bool on_devices = false;
  std::vector<JobSpec> choices = WithUnits(ChoicesOf(job));
  for (JobSpec& choice : choices) {
    if (!check(choice).ok()) continue;
    const bool wants_devices = WantsDevices(choice, cluster);
    if (jobs.empty()) on_devices = wants_devices;
    if (wants_devices != on_devices) continue;
    // Processors compute products in a format on widened operands: they do not have it.
    const bool in_format = PrecisionOf(choice.train.precision).block_products != nullptr;
    if (job.train.precision == "auto" && in_format && !on_devices) continue;
    if (any_mesh) {
      std::vector<MeshFamily> meshes = MeshesOf(choice, cluster, check);
      jobs.Add(std::move(choice), std::move(meshes));
    } else {
      jobs.Add(std::move(choice));
    }
  }
  // The first choice did not pass: it is not one of those in a format, which come last.
  if (jobs.empty()) return WhyNone(choices, check);
  return jobs;
}

bool WantsDevices(const JobSpec& job, const ClusterProfile& cluster) {
  if (NeedsCpus(job)) return false;
  if (job.resources.device != "auto") return job.resources.device == "cuda";
  return std::any_of(cluster.workers.begin(), cluster.workers.end(),
                     [](const WorkerProfile& worker) { return worker.device == "cuda"; });
}

SearchResults Search(const JobSet& jobs, const ClusterProfile& cluster, int threads, size_t wanted,
                     const std::stop_token& stop) {
  if (stop.stop_requested()) return {};
  if (threads == 0) threads = jobs.size() > 1 ? ThreadsOfMachine() : 1;
  BestFirst search(jobs, cluster, jobs.size() > 1 ? wanted : 0, threads, stop);
  std::map<size_t, SearchResult> found;
  std::vector<Judged> looked_at = search.Run();
  if (stop.stop_requested()) return {};
  for (Judged& each : looked_at) {
    SearchResult& result = found[each.mesh];
    (each.fits ? result.fitting : result.infeasible).push_back(std::move(each.costed));
  }
  SearchResults results;
  results.has_workers = search.has_workers();
  results.considered = search.considered();
  results.without_room = search.without_room();
  search.ForEachWithoutCores([&](size_t mesh, const Candidate& candidate) {
    const auto known = found.find(mesh);
    if (known != found.end() && !known->second.infeasible.empty()) return;
    ++results.considered;
    found[mesh].infeasible.push_back(search.Opened(mesh).FewCores(candidate));
  });
  int64_t infeasible = 0;
  for (auto& [mesh, result] : found) {
    results.fit += std::ssize(result.fitting);
    infeasible += std::ssize(result.infeasible);
    SortHead(result.fitting, wanted, Faster);
    SortHead(result.infeasible, wanted, Smaller);
    result.job = jobs.At(mesh);
    result.workers = search.Workers(mesh);
    for (CostedPlan& costed : result.infeasible) {
      if (!costed.infeasible_reason.empty()) continue;
      costed.infeasible_reason = MemoryReason(result.job.resources, *result.workers, costed);
    }
    result.cluster = search.Cluster(mesh);
    result.times_from = TimesFrom(*result.workers);
    results.found.push_back(std::move(result));
  }
  results.too_slow = results.considered - results.fit - infeasible - results.without_room;
  return results;
}

}  // namespace weft::planner
