#include "tests/simulation/coordinator.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "tests/simulation/stream.h"

namespace weft::simulation {

using coordinator::Metrics;
using coordinator::Service;
using coordinator::ServiceOptions;
using coordinator::SqliteOptions;
using coordinator::SqliteStore;
using std::chrono::milliseconds;

namespace {

/// As many ranks as the job wants: on the first GPUs that there are, or one on each machine. A step
/// takes a second over their number.
Result<PlanReport> FirstMachines(const JobSpec& spec, const ClusterProfile& cluster,
                                 const std::stop_token& stop) {
  if (stop.stop_requested()) return AbortedError("nobody waits for it");
  const ResourceSpec& wanted = spec.resources;
  const int64_t most = wanted.ranks > 0       ? wanted.ranks
                       : wanted.max_ranks > 0 ? wanted.max_ranks
                                              : std::numeric_limits<int64_t>::max();
  Plan plan;
  plan.device = wanted.device;
  const auto take = [&](const WorkerProfile& worker) {
    if (std::ssize(plan.rank_workers) == most) return false;
    plan.rank_workers.push_back(worker.worker_id);
    return true;
  };
  for (const WorkerProfile& worker : cluster.workers) {
    if (plan.device == "cpu") {
      if (worker.cores > 0) take(worker);
      continue;
    }
    for (const DeviceSpec& device : worker.devices) {
      if (device.unusable.empty() && take(worker)) plan.rank_devices.push_back(device.index);
    }
  }
  const int64_t ranks = std::ssize(plan.rank_workers);
  plan.mesh.data = ranks;
  plan.prediction.memory_per_rank.activations_bytes = 2000;
  plan.prediction.step_seconds = 1 / static_cast<double>(std::max<int64_t>(1, ranks));
  const int64_t least = wanted.ranks > 0 ? wanted.ranks : std::max<int64_t>(1, wanted.min_ranks);
  const bool fits = ranks >= least;
  PlanReport report;
  report.candidates.push_back({plan, fits, fits, "too few machines"});
  return report;
}

}  // namespace

Coordinator::Coordinator(Timeline& timeline, Rules& rules, ServiceOptions options)
    : timeline_(timeline), rules_(rules), options_(std::move(options)) {
  SqliteOptions sqlite;
  sqlite.path = ":memory:";
  database_ = std::move(*SqliteStore::Open(sqlite));
}

Coordinator::~Coordinator() {
  if (store_) store_->Die();
  service_.reset();
}

void Coordinator::Add(const std::shared_ptr<Stream>& stream) {
  streams_.push_back(stream);
}

void Coordinator::Remove(const Stream& stream) {
  std::erase_if(streams_, [&](const auto& each) { return each.get() == &stream; });
}

void Coordinator::Start() {
  ++life_;
  timeline_.Note("the coordinator starts");
  metrics_ = std::make_unique<Metrics>();
  store_ = std::make_unique<LateStore>(*database_, timeline_,
                                       [this](const auto& change) { rules_.See(change); });
  ServiceOptions options = options_;
  *options.simulation_seed += static_cast<uint64_t>(life_);
  service_ =
      std::make_unique<Service>(*store_, timeline_.clock(), FirstMachines, *metrics_, options);
  if (Status status = service_->Start(); !status.ok()) rules_.Break(status.message());
}

void Coordinator::Die(Duration away) {
  if (!service_) return;
  timeline_.Note("the coordinator dies");
  store_->Die();
  service_.reset();
  store_.reset();
  metrics_.reset();
  plans_ = false;
  for (const std::shared_ptr<Stream>& stream : std::exchange(streams_, {})) stream->EndLife();
  timeline_.After(away, [this] { Start(); });
}

void Coordinator::FailStore(Duration duration) {
  if (!store_) return;
  timeline_.Note("the disk is full");
  store_->Fail(duration);
}

void Coordinator::RunReady() {
  if (service_ && service_->RunReady()) PlanLater();
}

void Coordinator::PlanLater() {
  if (std::exchange(plans_, true)) return;
  const bool slow = timeline_.Chance(0.05);
  timeline_.After(timeline_.Between(milliseconds(1), milliseconds(slow ? 4000 : 40)),
                  [this, life = life_] {
                    if (!service_ || life != life_) return;
                    plans_ = false;
                    if (service_->RunPlanning()) PlanLater();
                  });
}

std::optional<Duration> Coordinator::NextTimer() {
  return service_ ? service_->NextTimer() : std::nullopt;
}

}  // namespace weft::simulation
