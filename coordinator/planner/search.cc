#include "coordinator/planner/search.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <queue>
#include <string_view>
#include <tuple>
#include <utility>

#include "common/spec/offload.h"
#include "common/spec/open_choices.h"
#include "coordinator/planner/cluster/on_threads.h"
#include "coordinator/planner/device_model.h"
#include "coordinator/planner/meshes.h"
#include "coordinator/planner/worker_groups.h"

namespace weft::planner {
namespace {

/// The step times of the kSorted fastest options. Several threads use it.
class FastestSteps {
 public:
  void Add(double seconds) {
    const std::lock_guard lock(mutex_);
    if (fastest_.size() == kSorted && seconds >= fastest_.top()) return;
    fastest_.push(seconds);
    if (fastest_.size() > kSorted) fastest_.pop();
    if (fastest_.size() == kSorted) limit_ = fastest_.top();
  }
  /// Steps that take longer are not among them.
  double Limit() const { return limit_; }

 private:
  std::mutex mutex_;
  std::priority_queue<double> fastest_;
  std::atomic<double> limit_ = std::numeric_limits<double>::infinity();
};

/// A candidate of one of several meshes.
struct Entry {
  const Candidate* candidate = nullptr;
  size_t mesh = 0;
};

/// A candidate that was looked at.
struct Judged {
  size_t entry = 0;
  bool fits = false;
  Option option;
};

/// Faster; then fewer ranks, less recomputation, less memory, fewer threads.
bool Faster(const Option& a, const Option& b) {
  const double time_a = StepSeconds(a.time), time_b = StepSeconds(b.time);
  const int64_t bytes_a = TotalBytes(a.memory), bytes_b = TotalBytes(b.memory);
  return std::tie(time_a, a.ranks, a.recomputed_blocks, bytes_a, a.threads, a.micro_batch,
                  b.ranks_per_worker) < std::tie(time_b, b.ranks, b.recomputed_blocks, bytes_b,
                                                 b.threads, b.micro_batch, a.ranks_per_worker);
}

bool Smaller(const Option& a, const Option& b) {
  const int64_t bytes_a = TotalBytes(a.memory), bytes_b = TotalBytes(b.memory);
  return std::tie(bytes_a, a.ranks, a.threads, a.micro_batch, a.ranks_per_worker) <
         std::tie(bytes_b, b.ranks, b.threads, b.micro_batch, b.ranks_per_worker);
}

/// Keeps the head of the list, in order.
template <class Before>
void SortHead(std::vector<Option>& options, Before before) {
  const auto head = options.begin() + static_cast<int64_t>(std::min(options.size(), kSorted));
  std::partial_sort(options.begin(), head, options.end(), before);
  options.erase(head, options.end());
}

/// Workers for jobs of one precision.
struct Pool {
  std::shared_ptr<const ClusterProfile> cluster;  ///< Where some are unfit.
  std::unique_ptr<WorkerGroups> workers;
};

Pool PoolOf(const JobSpec& job, const ClusterProfile& cluster, bool on_devices) {
  const PrecisionRecipe& precision = PrecisionOf(job.train.precision);
  Pool pool;
  if (precision.fp8_blocks) {
    pool.cluster = std::make_shared<const ClusterProfile>(WithoutUnfit(job, cluster));
  }
  pool.workers = std::make_unique<WorkerGroups>(pool.cluster != nullptr ? *pool.cluster : cluster,
                                                precision, on_devices);
  return pool;
}

/// What runs have taught of the first kind of machine of which they have.
std::string CalibrationText(const WorkerGroups& workers) {
  for (const RateModel& rates : workers.rates()) {
    const TimeCalibration& calibration = rates.calibration();
    if (calibration.runs == 0) continue;
    char text[96];
    std::snprintf(text, sizeof(text),
                  "measured rates calibrated by %lld runs (median error %.1f %%)",
                  static_cast<long long>(calibration.runs), 100 * calibration.error_ratio);
    return text;
  }
  return "";
}

}  // namespace

ClusterProfile WithoutUnfit(const JobSpec& job, ClusterProfile cluster) {
  if (job.train.precision != "fp8") return cluster;
  for (WorkerProfile& worker : cluster.workers) {
    for (DeviceSpec& device : worker.devices) {
      if (!device.unusable.empty() || MultipliesFp8(device)) continue;
      device.unusable = "it has no FP8 products (compute capability " + device.compute_capability +
                        ", and they need 8.9), which train.precision: bf16 does without";
    }
  }
  return cluster;
}

std::vector<JobSpec> JobsOf(const JobSpec& job, const ClusterProfile& cluster, bool any_mesh) {
  std::vector<JobSpec> jobs;
  bool on_devices = false;
  for (JobSpec& choice : ChoicesOf(job)) {
    if (!ValidateJob(choice).ok()) continue;
    const bool wants_devices = WantsDevices(choice, cluster);
    if (jobs.empty()) on_devices = wants_devices;
    if (wants_devices != on_devices) continue;
    // Processors compute products of fp8 on widened operands: they do not have it.
    if (job.train.precision == "auto" && choice.train.precision == "fp8" && !on_devices) continue;
    std::vector<JobSpec> meshes;
    if (any_mesh) meshes = MeshesOf(choice, cluster);
    if (!any_mesh) meshes.push_back(std::move(choice));
    std::move(meshes.begin(), meshes.end(), std::back_inserter(jobs));
  }
  return jobs;
}

bool WantsDevices(const JobSpec& job, const ClusterProfile& cluster) {
  if (HasTiers(job.resources)) return false;
  if (job.resources.device != "auto") return job.resources.device == "cuda";
  return std::any_of(cluster.workers.begin(), cluster.workers.end(),
                     [](const WorkerProfile& worker) { return worker.device == "cuda"; });
}

std::vector<SearchResult> Search(const std::vector<JobSpec>& jobs, const ClusterProfile& cluster,
                                 int threads) {
  std::vector<SearchResult> results(jobs.size());
  const bool on_devices = WantsDevices(jobs.front(), cluster);
  std::map<std::string_view, Pool> pools;
  for (const JobSpec& job : jobs) {
    auto [pool, added] = pools.try_emplace(job.train.precision);
    if (added) pool->second = PoolOf(job, cluster, on_devices);
  }
  const auto workers_of = [&](size_t mesh) -> const WorkerGroups& {
    return *pools.at(jobs[mesh].train.precision).workers;
  };

  std::vector<std::unique_ptr<MeshSearch>> meshes(jobs.size());
  std::vector<std::vector<Candidate>> candidates(jobs.size());
  OnThreads(threads, jobs.size(), [&](size_t mesh) {
    const WorkerGroups& workers = workers_of(mesh);
    if (workers.workers().empty()) return true;
    meshes[mesh] =
        std::make_unique<MeshSearch>(jobs[mesh], workers, mesh > 0 ? &jobs.front() : nullptr);
    candidates[mesh] = meshes[mesh]->Candidates();
    return true;
  });

  // By what they take at least, so that when one is too slow all others are.
  std::vector<Entry> entries;
  for (size_t mesh = 0; mesh < jobs.size(); ++mesh) {
    for (const Candidate& candidate : candidates[mesh]) entries.push_back({&candidate, mesh});
  }
  const bool several = jobs.size() > 1;
  if (several) {
    std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return a.candidate->least_seconds < b.candidate->least_seconds;
    });
  }
  FastestSteps fastest;
  std::mutex mutex;
  std::vector<Judged> judged;
  OnThreads(threads, entries.size(), [&](size_t i) {
    const auto& [candidate, mesh] = entries[i];
    if (several && candidate->least_seconds > fastest.Limit()) return false;
    Judged own;
    own.entry = i;
    own.fits = meshes[mesh]->Judge(*candidate, own.option);
    if (own.fits) fastest.Add(StepSeconds(own.option.time));
    const std::lock_guard lock(mutex);
    judged.push_back(std::move(own));
    return true;
  });

  // Which ones were judged beyond the limit, and in which order, depends on the threads' luck.
  std::sort(judged.begin(), judged.end(),
            [](const Judged& a, const Judged& b) { return a.entry < b.entry; });
  for (Judged& each : judged) {
    const auto& [candidate, mesh] = entries[each.entry];
    if (several && candidate->least_seconds > fastest.Limit()) break;
    SearchResult& result = results[mesh];
    (each.fits ? result.fitting : result.misfitting).push_back(std::move(each.option));
  }
  for (size_t mesh = 0; mesh < jobs.size(); ++mesh) {
    if (meshes[mesh] == nullptr) continue;
    const WorkerGroups& workers = workers_of(mesh);
    SearchResult& result = results[mesh];
    result.considered = std::ssize(candidates[mesh]);
    result.fit = std::ssize(result.fitting);
    result.too_slow = result.considered - result.fit - std::ssize(result.misfitting);
    const Option& few_cores = meshes[mesh]->FewCores();
    if (result.misfitting.empty() && !few_cores.misfit.empty()) {
      ++result.considered;
      result.misfitting.push_back(few_cores);
    }
    SortHead(result.fitting, Faster);
    SortHead(result.misfitting, Smaller);
    for (Option& option : result.misfitting) {
      if (option.misfit.empty()) option.misfit = meshes[mesh]->MemoryReason(option);
    }
    result.workers = workers.workers();
    result.cluster = pools.at(jobs[mesh].train.precision).cluster;
    result.kinds = workers.kinds();
    if (const DeviceModel* device = workers.rates().front().device()) {
      result.times_from = device->Source();
    } else {
      result.times_from = CalibrationText(workers);
    }
  }
  return results;
}

}  // namespace weft::planner
