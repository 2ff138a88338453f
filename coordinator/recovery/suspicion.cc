#include "coordinator/recovery/suspicion.h"

#include <algorithm>
#include <cmath>

namespace weft::coordinator {
namespace {

/// Less than this is as good as nothing, and not reported.
constexpr double kNegligible = 0.05;

/// What the program of a job may have done as well.
bool MayBeTheJob(Reason reason) {
  return reason == Reason::kRankDied || reason == Reason::kHung;
}

}  // namespace

double BlameOf(Reason reason) {
  switch (reason) {
    case Reason::kDeviceFailed:
    case Reason::kWorkerLost:
    case Reason::kMachineUnhealthy:
    case Reason::kSilentCorruption:
      return 1;
    case Reason::kRankDied:
    case Reason::kHung:
      return 0.5;
    default:
      return 0;
  }
}

std::optional<SuspicionRecord> SuspicionTable::Blame(const std::string& worker_id,
                                                     const std::string& job_id, Reason reason,
                                                     double now) {
  const double blame = BlameOf(reason);
  if (blame == 0) return std::nullopt;
  if (MayBeTheJob(reason) && !machines_[worker_id].jobs.insert(job_id).second) return std::nullopt;
  const double before = Of(worker_id, now);
  SuspicionRecord& record = machines_[worker_id].record;
  record = {worker_id, before + blame, now};
  return record;
}

SuspicionRecord SuspicionTable::Clear(const std::string& worker_id, double now) {
  machines_.erase(worker_id);
  return {worker_id, 0, now};
}

double SuspicionTable::Of(const std::string& worker_id, double now) const {
  const auto it = machines_.find(worker_id);
  if (it == machines_.end()) return 0;
  const double age = std::max(0.0, now - it->second.record.at);
  const double left = it->second.record.suspicion * std::exp2(-age / rules_.half_life_seconds);
  return left < kNegligible ? 0 : left;
}

std::map<std::string, double> SuspicionTable::All(double now) const {
  std::map<std::string, double> all;
  for (const auto& [id, machine] : machines_) {
    all[id] = Of(id, now);
  }
  return all;
}

}  // namespace weft::coordinator
