#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/spec/offload.h"
#include "coordinator/scheduler/elastic_shares.h"
#include "coordinator/scheduler/pass.h"

namespace weft::coordinator {
namespace {

/// The claim of a job whose turn that is on its kind of device, without where its share goes.
ShareClaim ClaimOn(bool devices, const ResourceSpec& resources, const Turn& turn) {
  ShareClaim claim{turn.priority, turn.at, std::max<int64_t>(resources.min_ranks, 1),
                   resources.max_ranks, nullptr};
  if (!devices) {
    claim.least *= CoresOfARank(resources);
    claim.most *= resources.threads_per_rank;
  }
  const int64_t has = devices
                          ? turn.amount.gpus
                          : std::max(turn.amount.cores, resources.ranks * CoresOfARank(resources));
  if (resources.ranks > 0 && has > 0) {
    claim.least = std::max(claim.least, has);
    claim.most = has;
  }
  return claim;
}

}  // namespace

void SchedulingPass::ShareAmong(JobOrder& order) {
  std::vector<ShareClaim> on_devices, on_cpus;
  const auto add = [&](bool devices, const JobSpec& spec, const Turn& turn, ComputeShare& share) {
    ShareClaim& claim =
        (devices ? on_devices : on_cpus).emplace_back(ClaimOn(devices, spec.resources, turn));
    claim.share = &share;
  };
  order.ForEach([&](RankedJob& ranked) {
    const QueuedJob& job = *ranked.job;
    const ComputeAmount& amount = ranked.turn.amount;
    const std::string& device = job.spec->resources.device;
    ranked.on_devices =
        amount.gpus > 0 ||
        (amount.cores == 0 &&
         (device == "cuda" || (device != "cpu" && has_devices_ && !NeedsCpus(*job.spec))));
    // It does not start on this cluster, or not now.
    if (job.infeasible_reason != nullptr || job.given_up_reason != nullptr) return;
    add(ranked.on_devices, *job.spec, ranked.turn, ranked.share);
  });
  const double restart = 2 * snapshot_.rules.scale_up.restart.assumed_start_seconds;
  for (RankedActive& active : active_) {
    if (active.seconds_left <= restart) continue;
    const RunningJob& job = active.job->job;
    add(OnDevices(*job.plan), *job.spec, active.turn, active.share);
  }
  const double exponent = snapshot_.rules.share_exponent;
  if (on_devices.size() > 1) ShareCompute(std::move(on_devices), total_.gpus, exponent);
  if (on_cpus.size() > 1) ShareCompute(std::move(on_cpus), total_.cores, exponent);
}

int64_t SchedulingPass::MostOf(const RankedJob& ranked) {
  const ResourceSpec& resources = ranked.job->spec->resources;
  if (resources.ranks == 0 && ranked.share.amount > 0) return ranked.share.amount;
  return ranked.on_devices ? resources.max_ranks : 0;
}

void SchedulingPass::KeepToShare(Candidate& candidate) {
  const RankedJob& ranked = candidate.ranked;
  ResourceSpec& resources = candidate.spec.resources;
  const int64_t share = ranked.share.amount;
  const bool devices = resources.device == "cuda";
  if (resources.ranks > 0 || share == 0 || devices != ranked.on_devices) return;
  if (devices) {
    int64_t& most = resources.max_ranks;
    most = most > 0 ? std::min(most, share) : share;
  } else {
    candidate.most_cores = std::min(candidate.most_cores.value_or(share), share);
  }
}

}  // namespace weft::coordinator
