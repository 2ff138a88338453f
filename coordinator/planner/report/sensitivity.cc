#include "coordinator/planner/report/sensitivity.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "common/model/precision.h"
#include "common/spec/planned_job.h"
#include "coordinator/planner/cluster/step_model.h"
#include "coordinator/planner/device_model.h"
#include "coordinator/planner/processor_rates.h"
#include "coordinator/planner/report/devices.h"
#include "coordinator/planner/search.h"

namespace weft::planner {
namespace {

constexpr double kMore = 1.1;

/// Sizes at which rates that were not measured are written down.
constexpr int64_t kSizes[] = {64, 512, 4096};

/// Every rate that the planner would put in the place of one that was not measured, written down
/// as if it had been, so that it can be raised.
class ExplicitRates {
 public:
  ExplicitRates(const Plan& plan, DType products, bool on_devices)
      : plan_(plan), products_(products), on_devices_(on_devices) {}

  WorkerProfile Of(WorkerProfile worker) const {
    WorkerProfile measured = worker;
    // It stays, and counts for what is written down.
    measured.calibration = {};
    const ProcessorRates rates(measured, products_);
    if (worker.loopback_bytes_per_second <= 0) {
      worker.loopback_bytes_per_second = rates.LinkBytesPerSecond(true);
    }
    if (on_devices_) {
      for (DeviceSpec& device : worker.devices) {
        if (device.unusable.empty()) Complete(device);
      }
      return worker;
    }
    // This many threads are never short of what all cores draw.
    constexpr int64_t kAllCores = 1 << 16;
    worker.copy_bytes_per_second = rates.MemoryBytesPerSecond({kAllCores, 1});
    if (worker.gemm.empty()) {
      for (const DType type : {DType::kF32, products_}) {
        Add(worker.gemm, std::string(GemmRateName(type)), [&](int64_t m, int64_t n, int64_t k) {
          return rates.GemmFlopsPerSecond(type, m, n, k, plan_.threads_per_rank);
        });
        if (type == products_) break;
      }
    }
    return worker;
  }

 private:
  void Complete(DeviceSpec& device) const {
    const DeviceModel model(device);
    DeviceSpec unit = device;
    unit.copy_bytes_per_second = 1;
    const double share = DeviceModel(unit).MemoryBytesPerSecond();
    device.copy_bytes_per_second = model.MemoryBytesPerSecond() / share;
    for (DeviceLink& link : device.links) {
      if (link.bytes_per_second > 0) continue;
      link.bytes_per_second =
          AcceleratorOf(device).link_bytes_per_second * model.stack().link_share;
    }
    if (!device.gemm.empty()) return;
    std::vector<std::string> names = {std::string(GemmRateName(products_))};
    if (const ProductFormat* format = PrecisionOf(plan_.precision).block_products) {
      names.emplace_back(format->rate_name);
    }
    for (const std::string& name : names) {
      Add(device.gemm, name, [&](int64_t m, int64_t n, int64_t k) {
        const auto rows = static_cast<double>(m), columns = static_cast<double>(n),
                   inner = static_cast<double>(k);
        return 2 * rows * columns * inner / model.ProductSeconds(name, rows, columns, inner);
      });
    }
  }

  void Add(std::vector<GemmRate>& rates, const std::string& precision,
           const std::function<double(int64_t, int64_t, int64_t)>& flops) const {
    for (const int64_t m : kSizes) {
      for (const int64_t n : kSizes) {
        for (const int64_t k : kSizes) {
          rates.push_back({precision, m, n, k, plan_.threads_per_rank, flops(m, n, k)});
        }
      }
    }
  }

  const Plan& plan_;
  const DType products_;
  const bool on_devices_;
};

/// The step of `plan` if the machines were those of `cluster`; 0 where it does not fit them.
double StepOn(const JobSpec& planned, const ClusterProfile& cluster, const Plan& plan,
              const std::stop_token& stop) {
  std::map<std::string, int64_t> wanted;
  for (const std::string& worker : plan.rank_workers) ++wanted[worker];
  const int64_t recomputed =
      std::count(plan.block_memory_policy.begin(), plan.block_memory_policy.end(), "recompute");
  const SearchResults results = Search(JobSet(planned), cluster, 0, kSorted, stop);
  if (results.found.empty()) return 0;
  const SearchResult& result = results.found.front();
  double seconds = 0;
  for (const CostedPlan& costed : result.fitting) {
    const std::vector<int64_t> ranks_on = PlaceRanks(costed, result.workers->workers());
    std::map<std::string, int64_t> placed;
    for (size_t w = 0; w < ranks_on.size(); ++w) {
      if (ranks_on[w] > 0) placed[result.workers->workers()[w]->worker_id] = ranks_on[w];
    }
    if (placed != wanted) continue;
    const double own = StepSeconds(costed.time);
    if (costed.schedule.empty() && costed.recomputed_blocks == recomputed) return own;
    if (seconds == 0 || own < seconds) seconds = own;
  }
  return seconds;
}

using Raise = std::function<void(ClusterProfile&)>;

/// Raises a rate of each machine.
template <class OfWorker>
Raise OfWorkers(OfWorker raise) {
  return [raise](ClusterProfile& cluster) {
    for (WorkerProfile& worker : cluster.workers) raise(worker);
  };
}

void RaiseProducts(std::vector<GemmRate>& rates) {
  for (GemmRate& rate : rates) rate.flops_per_second *= kMore;
}

/// The rates of machines that a plan on them can depend on.
std::vector<std::pair<std::string, Raise>> RatesOf(const ClusterProfile& cluster, const Plan& plan,
                                                   bool on_devices) {
  std::vector<std::pair<std::string, Raise>> rates;
  rates.emplace_back("compute", OfWorkers([=](WorkerProfile& worker) {
                       if (!on_devices) RaiseProducts(worker.gemm);
                       for (DeviceSpec& device : worker.devices) RaiseProducts(device.gemm);
                     }));
  rates.emplace_back("memory bandwidth", OfWorkers([=](WorkerProfile& worker) {
                       if (!on_devices) worker.copy_bytes_per_second *= kMore;
                       for (DeviceSpec& device : worker.devices) {
                         device.copy_bytes_per_second *= kMore;
                       }
                     }));
  const std::vector<UsedMachine> machines = MachinesOf(plan, cluster);
  const bool shared = std::any_of(machines.begin(), machines.end(),
                                  [](const UsedMachine& machine) { return machine.ranks > 1; });
  const Raise between = [](ClusterProfile& all) {
    for (WorkerProfile& worker : all.workers) {
      worker.loopback_bytes_per_second *= kMore;
      worker.network_bytes_per_second *= kMore;
      worker.between_racks_bytes_per_second *= kMore;
    }
    for (LinkSpec& link : all.links) link.bytes_per_second *= kMore;
  };
  if (!on_devices) {
    // Ranks on processors speak over the same kind of connection wherever they are.
    if (shared || machines.size() > 1) {
      rates.emplace_back(machines.size() == 1 ? "links inside the machine"
                         : shared             ? "links inside and between machines"
                                              : "links between machines",
                         between);
    }
    return rates;
  }
  if (shared) {
    rates.emplace_back("links inside machines", OfWorkers([](WorkerProfile& worker) {
                         for (DeviceSpec& device : worker.devices) {
                           for (DeviceLink& link : device.links) link.bytes_per_second *= kMore;
                         }
                       }));
  }
  if (machines.size() > 1) rates.emplace_back("links between machines", between);
  return rates;
}

}  // namespace

std::vector<Sensitivity> SensitivityOf(const JobSpec& job, const ClusterProfile& cluster,
                                       const Plan& plan, const std::stop_token& stop) {
  const bool on_devices = plan.device != "cpu";
  const JobSpec planned = JobAsPlanned(job, plan);
  const ExplicitRates rates(plan, PrecisionOf(plan.precision).products, on_devices);
  ClusterProfile base{.workers = {}, .links = cluster.links};
  for (const WorkerProfile& worker : cluster.workers) base.workers.push_back(rates.Of(worker));
  const double step = StepOn(planned, base, plan, stop);
  std::vector<Sensitivity> sensitivity;
  if (step == 0) return sensitivity;
  const auto add = [&](const std::string& what, double with) {
    if (with == 0) return;
    const double gain = step / with - 1;
    sensitivity.push_back({what, gain, plan.prediction.step_seconds / (1 + gain)});
  };
  for (const auto& [what, raise] : RatesOf(cluster, plan, on_devices)) {
    ClusterProfile raised = base;
    raise(raised);
    add(what, StepOn(planned, raised, plan, stop));
  }
  if (job.resources.host_link_bytes_per_second > 0) {
    JobSpec faster = planned;
    faster.resources.host_link_bytes_per_second =
        static_cast<int64_t>(kMore * static_cast<double>(job.resources.host_link_bytes_per_second));
    add("link to the host", StepOn(faster, base, plan, stop));
  }
  std::stable_sort(sensitivity.begin(), sensitivity.end(),
                   [](const auto& a, const auto& b) { return a.gain > b.gain; });
  return sensitivity;
}

}  // namespace weft::planner
