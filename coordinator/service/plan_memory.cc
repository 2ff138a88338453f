#include "coordinator/service/plan_memory.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <set>
#include <vector>

#include "common/clock.h"
#include "common/failpoint.h"
#include "common/model/technique_cost.h"
#include "common/spec/spec_key.h"

namespace weft::coordinator {
namespace {

/// Answers and clusters that are remembered; reports have up to some hundred KiB each.
constexpr size_t kMostEntries = 256;
constexpr size_t kMostClusters = 16;
/// Jobs whose plan was given up that are distinguished.
constexpr size_t kMostOverruns = 4096;

/// What tells jobs apart for which the planner's answers may differ.
std::string JobKeyOf(const JobSpec& spec) {
  JobSpec shape = spec;
  shape.name.clear();
  for (const DataList& data : DataLists(shape)) data.paths->clear();
  std::string key;
  AppendKey(shape, key);
  return key;
}

/// Tells most clusters apart.
size_t HashOf(const ClusterProfile& cluster) {
  size_t hash = cluster.workers.size();
  const auto add = [&](size_t value) { hash = (hash ^ value) * 0x9e3779b97f4a7c15u; };
  for (const WorkerProfile& worker : cluster.workers) {
    add(std::hash<std::string>()(worker.worker_id));
    add(static_cast<size_t>(worker.cores));
    add(static_cast<size_t>(worker.memory_limit_bytes));
    add(worker.devices.size());
  }
  return hash;
}

}  // namespace

PlanMemory::PlanMemory(const Clock& clock, PlanningPool& pool, StoppablePlanFunction plan,
                       PlanningRules rules, Post post, PostAfter post_after, Changed changed)
    : clock_(clock),
      pool_(pool),
      plan_(std::move(plan)),
      rules_(rules),
      post_(std::move(post)),
      post_after_(std::move(post_after)),
      changed_(std::move(changed)) {}

Result<PlanReport> PlanMemory::Find(const JobSpec& spec, const ClusterProfile& cluster,
                                    const std::string& owner) {
  KnownCluster known = IdOf(cluster);
  Key key{known.id, JobKeyOf(spec)};
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    Entry& entry = *found->second;
    entries_.splice(entries_.begin(), entries_, found->second);
    entry.pass = pass_;
    if (entry.ticket != nullptr && owner.empty()) asked_.push_back(entry.ticket);
    return entry.report;
  }
  const auto overrun = overruns_.find(key.shape);
  if (overrun != overruns_.end() && clock_.Monotonic() < overrun->second.not_before) {
    return TookTooLong();
  }
  entries_.push_front({.key = key, .owner = owner, .pass = pass_});
  by_key_[std::move(key)] = entries_.begin();
  Ask(entries_.front(), spec, std::move(known.cluster));
  if (entries_.front().ticket == nullptr) {  // shutting down
    const Status status = entries_.front().report.status();
    GiveUp(entries_.begin());
    return status;
  }
  if (owner.empty()) asked_.push_back(entries_.front().ticket);
  const Status status = entries_.front().report.status();
  // What is still looked for is not forgotten.
  for (auto last = entries_.end(); entries_.size() > kMostEntries && last != entries_.begin();) {
    --last;
    if (last->ticket != nullptr) continue;
    by_key_.erase(last->key);
    last = entries_.erase(last);
  }
  return status;
}

Result<PlanReport> PlanMemory::Recall(const JobSpec& spec, const ClusterProfile& cluster) const {
  const auto known = Known(cluster, HashOf(cluster));
  if (known == clusters_.end()) return UnavailableError("its plan is not known");
  const auto found = by_key_.find({known->id, JobKeyOf(spec)});
  if (found == by_key_.end()) return UnavailableError("its plan is not known");
  return found->second->report;
}

PlanMemory::KnownClusters::const_iterator PlanMemory::Known(const ClusterProfile& cluster,
                                                            size_t hash) const {
  return std::find_if(clusters_.begin(), clusters_.end(), [&](const KnownCluster& known) {
    return known.hash == hash && known.cluster->workers == cluster.workers &&
           known.cluster->links == cluster.links;
  });
}

PlanMemory::KnownCluster PlanMemory::IdOf(const ClusterProfile& cluster) {
  const size_t hash = HashOf(cluster);
  const auto found = Known(cluster, hash);
  if (found != clusters_.end()) {
    clusters_.splice(clusters_.begin(), clusters_, found);
  } else {
    clusters_.push_front({++last_cluster_, hash, std::make_shared<const ClusterProfile>(cluster)});
    ForgetClusters();
  }
  return clusters_.front();
}

void PlanMemory::ForgetClusters() {
  std::set<int64_t> in_use;  // something is looked for on them
  for (const Entry& entry : entries_) {
    if (entry.ticket != nullptr) in_use.insert(entry.key.cluster);
  }
  for (auto last = std::prev(clusters_.end());
       clusters_.size() > kMostClusters && last != clusters_.begin();) {
    const auto known = last--;
    if (in_use.contains(known->id)) continue;
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      const auto next = std::next(entry);
      if (entry->key.cluster == known->id) GiveUp(entry);
      entry = next;
    }
    clusters_.erase(known);
  }
}

void PlanMemory::Ask(Entry& entry, const JobSpec& spec,
                     std::shared_ptr<const ClusterProfile> cluster) {
  entry.number = ++last_number_;
  auto work = [this, key = entry.key, number = entry.number, spec,
               cluster = std::move(cluster)](const PlanTicket& ticket) {
    Result<PlanReport> report = AbortedError("planning was stopped");
    (void)Failpoint("coordinator.plan.before");
    if (!ticket.stop().stop_requested()) report = plan_(spec, *cluster, ticket.stop());
    post_([this, key, number, overran = ticket.overran(), report = std::move(report)] {
      Take(key, number, overran, report);
    });
  };
  entry.ticket = pool_.Add(rules_.budget, std::move(work));
}

void PlanMemory::Take(const Key& key, int64_t number, bool overran, Result<PlanReport> report) {
  const auto found = by_key_.find(key);
  // Given up, and maybe asked for again.
  if (found == by_key_.end() || found->second->number != number) return;
  Entry& entry = *found->second;
  const std::string owner = entry.owner;
  // It may have been done just when it was asked to stop.
  const bool stopped = !report.ok() && report.status().code() == StatusCode::kAborted;
  if (!stopped) {
    overruns_.erase(key.shape);
    entry.ticket.reset();
    entry.report = std::move(report);
    entries_.splice(entries_.begin(), entries_, found->second);
    changed_(owner);
    return;
  }
  if (overran) {
    if (overruns_.size() >= kMostOverruns) overruns_.erase(overruns_.begin());
    Overrun& overrun = overruns_[key.shape];
    const auto doublings = std::min(overrun.times++, 10);
    const auto pause =
        std::min(rules_.first_pause * (int64_t{1} << doublings), rules_.longest_pause);
    overrun.not_before = clock_.Monotonic() + pause;
    post_after_(pause, [this, owner] { changed_(owner); });
  }
  GiveUp(found->second);
  if (overran) GiveUpIf([&](const Entry& other) { return other.key.shape == key.shape; });
  changed_(owner);
}

void PlanMemory::BeginPass() {
  ++pass_;
  asked_.clear();
}

void PlanMemory::EndPass() {
  GiveUpIf([&](const Entry& entry) { return entry.owner.empty() && entry.pass != pass_; });
  // Jobs whose turn has come nearer do not bury those submitted last.
  pool_.MoveToEnd(asked_);
  asked_.clear();
}

void PlanMemory::Forget(const std::string& owner) {
  GiveUpIf([&](const Entry& entry) { return entry.owner == owner; });
}

void PlanMemory::GiveUpIf(const std::function<bool(const Entry&)>& which) {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto next = std::next(entry);
    if (entry->ticket != nullptr && which(*entry)) GiveUp(entry);
    entry = next;
  }
}

void PlanMemory::GiveUp(Entries::iterator entry) {
  const std::shared_ptr<PlanTicket> ticket = std::move(entry->ticket);
  by_key_.erase(entry->key);
  entries_.erase(entry);
  if (ticket != nullptr) pool_.Cancel(ticket);
}

Status PlanMemory::TookTooLong() const {
  char text[256];
  std::snprintf(text, sizeof(text),
                "planning it took longer than the %g s that it may take, and is tried again after "
                "a pause; hint: leave fewer choices open (resources.recompute, resources.ranks, "
                "resources.micro_batch)",
                ToSeconds(rules_.budget));
  return AbortedError(text);
}

}  // namespace weft::coordinator
