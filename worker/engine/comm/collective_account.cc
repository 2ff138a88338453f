#include "worker/engine/comm/collective_account.h"

namespace weft::engine {

std::string_view CollectiveKindName(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all-reduce";
    case CollectiveKind::kReduceScatter:
      return "reduce-scatter";
    case CollectiveKind::kAllGather:
      return "all-gather";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kExchange:
      return "send and receive";
    case CollectiveKind::kAllToAll:
      return "all-to-all";
    case CollectiveKind::kControl:
      return "control";
  }
  return "?";
}

std::string_view CollectiveKindShortName(CollectiveKind kind) {
  if (kind == CollectiveKind::kExchange) return "send-receive";
  return kind == CollectiveKind::kControl ? "barrier" : CollectiveKindName(kind);
}

void CollectiveAccount::AddDone(CollectiveKind kind, std::string_view label, double bytes,
                                double sent_bytes, double seconds) {
  if (Profiler* profiler = profiler_; profiler != nullptr) {
    profiler->AddCollective(label, group_, seconds, bytes);
  }
  std::lock_guard lock(mutex_);
  totals_[static_cast<size_t>(kind)] += {1, bytes, sent_bytes, seconds, 0};
}

void CollectiveAccount::AddExposed(CollectiveKind kind, double seconds) {
  std::lock_guard lock(mutex_);
  totals_[static_cast<size_t>(kind)].exposed_seconds += seconds;
}

CollectiveTotals CollectiveAccount::totals(CollectiveKind kind) const {
  std::lock_guard lock(mutex_);
  return totals_[static_cast<size_t>(kind)];
}

CollectiveTotals CollectiveAccount::totals() const {
  std::lock_guard lock(mutex_);
  CollectiveTotals sum;
  for (const CollectiveTotals& part : totals_) sum += part;
  return sum;
}

}  // namespace weft::engine
