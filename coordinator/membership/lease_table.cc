#include "coordinator/membership/lease_table.h"

namespace weft::coordinator {

void LeaseTable::Renew(const std::string& worker_id) {
  Entry& entry = entries_[worker_id];
  if (entry.due) due_.erase({*entry.due, worker_id});
  entry = Entry{clock_.Monotonic(), false, clock_.Monotonic() + lease_};
  due_.emplace(*entry.due, worker_id);
}

void LeaseTable::Forget(const std::string& worker_id) {
  const auto it = entries_.find(worker_id);
  if (it == entries_.end()) return;
  if (it->second.due) due_.erase({*it->second.due, worker_id});
  entries_.erase(it);
}

std::vector<LeaseTable::Change> LeaseTable::TakeChanges() {
  const Duration now = clock_.Monotonic();
  std::vector<Change> changes;
  while (!due_.empty() && due_.begin()->first <= now) {
    const std::string worker_id = due_.begin()->second;
    due_.erase(due_.begin());
    Entry& entry = entries_.at(worker_id);
    if (entry.expired) {
      changes.push_back({worker_id, Phase::kGone});
      entry.due.reset();
      continue;
    }
    changes.push_back({worker_id, Phase::kExpired});
    entry.expired = true;
    entry.due = entry.renewed_at + lease_ + margin_;
    due_.emplace(*entry.due, worker_id);
  }
  return changes;
}

std::optional<LeaseTable::Duration> LeaseTable::NextDeadline() const {
  if (due_.empty()) return std::nullopt;
  return due_.begin()->first;
}

bool LeaseTable::IsValid(const std::string& worker_id) const {
  auto it = entries_.find(worker_id);
  return it != entries_.end() && clock_.Monotonic() < it->second.renewed_at + lease_;
}

}  // namespace weft::coordinator
