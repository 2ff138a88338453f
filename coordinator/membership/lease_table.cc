#include "coordinator/membership/lease_table.h"

#include <algorithm>

namespace weft::coordinator {

void LeaseTable::Renew(const std::string& worker_id) {
  entries_[worker_id] = Entry{clock_.Monotonic()};
}

std::vector<LeaseTable::Change> LeaseTable::TakeChanges() {
  Duration now = clock_.Monotonic();
  std::vector<std::pair<Duration, Change>> due;
  for (auto& [worker_id, entry] : entries_) {
    Duration expiry = entry.renewed_at + lease_;
    if (!entry.expired && now >= expiry) {
      entry.expired = true;
      due.push_back({expiry, {worker_id, Phase::kExpired}});
    }
    if (!entry.gone && now >= expiry + margin_) {
      entry.gone = true;
      due.push_back({expiry + margin_, {worker_id, Phase::kGone}});
    }
  }
  std::stable_sort(due.begin(), due.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Change> changes;
  changes.reserve(due.size());
  for (auto& [time, change] : due) changes.push_back(std::move(change));
  return changes;
}

std::optional<LeaseTable::Duration> LeaseTable::NextDeadline() const {
  std::optional<Duration> next;
  for (const auto& [worker_id, entry] : entries_) {
    if (entry.gone) continue;
    Duration deadline = entry.renewed_at + lease_ + (entry.expired ? margin_ : Duration{0});
    if (!next || deadline < *next) next = deadline;
  }
  return next;
}

bool LeaseTable::IsValid(const std::string& worker_id) const {
  auto it = entries_.find(worker_id);
  return it != entries_.end() && clock_.Monotonic() < it->second.renewed_at + lease_;
}

}  // namespace weft::coordinator
