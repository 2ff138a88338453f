#include "tests/simulation/ranks.h"

#include <algorithm>
#include <set>

#include "common/env.h"

namespace weft::simulation {

using coordinator::CheckpointRecord;
using coordinator::PlacementEvent;
using coordinator::Reason;
using coordinator::RunningAttempt;
using coordinator::StartOrder;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

/// Ranks that wait for others look again after this.
constexpr milliseconds kPoll{200};

std::string NameOf(const Ranks::Key& key) {
  return key.first + "@" + std::to_string(key.second);
}

}  // namespace

Ranks::Member* Ranks::Living(const RankListener& worker, const Key& key) {
  const auto gang = gangs_.find(key);
  if (gang == gangs_.end()) return nullptr;
  const auto member = gang->second->members.find(worker.id());
  if (member == gang->second->members.end() || member->second->over) return nullptr;
  return member->second;
}

bool Ranks::Whole(const Gang& gang) {
  return gang.members.size() == gang.machines &&
         std::all_of(gang.members.begin(), gang.members.end(), [](const auto& entry) {
           return entry.second->started && !entry.second->over;
         });
}

bool Ranks::Lives(const Gang& gang) {
  return std::any_of(gang.members.begin(), gang.members.end(),
                     [](const auto& entry) { return !entry.second->over; });
}

bool Ranks::AnyOf(const std::string& job_id) const {
  return std::any_of(gangs_.begin(), gangs_.end(), [&](const auto& entry) {
    return entry.first.first == job_id && Lives(*entry.second);
  });
}

int64_t Ranks::SavedStep(const std::string& job_id) const {
  const auto saved = saved_.find(job_id);
  return saved == saved_.end() ? 0 : saved->second;
}

void Ranks::Start(RankListener& worker, const StartOrder& order) {
  const Key key{order.job_id, order.epoch};
  std::unique_ptr<Gang>& gang = gangs_[key];
  if (gang == nullptr) {
    gang = std::make_unique<Gang>();
    gang->key = key;
    gang->run_dir = order.run_dir;
    gang->steps = order.spec.train.steps;
    gang->save_every = order.spec.checkpoint.every_steps;
    gang->step_time = FromSeconds(order.plan.prediction.step_seconds);
    gang->machines =
        std::set<std::string>(order.plan.rank_workers.begin(), order.plan.rank_workers.end())
            .size();
    gang->alive_at = timeline_.now();
    gang->elastic = order.membership > 0;
  }
  // A machine that crashed may have forgotten that it had some.
  if (Living(worker, key) != nullptr) rules_.Break(NameOf(key) + " starts twice on " + worker.id());
  Member& member = *gang->all.emplace_back(std::make_unique<Member>());
  gang->members[worker.id()] = &member;
  member.worker = &worker;
  member.ranks = order.ranks;
  member.joins = order.joins;
  if (gang->broken && !order.joins) Break(*gang);
  const Duration starting = timeline_.Between(milliseconds(100), milliseconds(1500));
  timeline_.After(starting, [this, gang = gang.get(), &member] {
    if (member.over) return;
    member.started = true;
    gang->alive_at = timeline_.now();
    End(*gang, member, PlacementEvent::kStarted);
    if (!gang->meets && Whole(*gang)) Meet(*gang);
  });
}

void Ranks::Meet(Gang& gang) {
  gang.meets = true;
  timeline_.After(timeline_.Between(milliseconds(50), seconds(2)), [this, &gang] {
    gang.loaded = true;
    gang.step = SavedStep(gang.key.first);
    if (gang.step > 0) gang.resumed_from = gang.step;
    if (gang.step >= gang.steps) return EndAll(gang, PlacementEvent::kFinished);
    StepLater(gang, gang.step_time);
  });
}

void Ranks::StepLater(Gang& gang, Duration delay) {
  timeline_.After(delay, [this, &gang] { Step(gang); });
}

void Ranks::CheckAlone(const Gang& gang) {
  for (const auto& [key, other] : gangs_) {
    if (key.first != gang.key.first || key.second == gang.key.second) continue;
    for (const auto& [id, member] : other->members) {
      if (!member->over && member->worker->Runs()) {
        rules_.Break(NameOf(gang.key) + " trains while ranks of " + NameOf(key) + " live on " + id);
      }
    }
  }
}

void Ranks::Step(Gang& gang) {
  if (gang.elastic) return StepTogether(gang);
  if (gang.broken || gang.hung || gang.ends || !Whole(gang)) return;
  const std::vector<Member*> members = Peers(gang);
  if (members.empty()) return StepLater(gang, kPoll);
  MakeStep(gang, members);
}

void Ranks::MakeStep(Gang& gang, const std::vector<Member*>& members) {
  CheckAlone(gang);
  gang.alive_at = timeline_.now();
  if (gang.stopping) return Save(gang);
  ++gang.step;
  gang.training = true;
  for (Member* member : members) {
    member->worker->OnLine(gang.key, member->ranks.front());
    if (!std::exchange(member->trained, true)) End(gang, *member, PlacementEvent::kTraining);
  }
  const bool saves =
      gang.step >= gang.steps || (gang.save_every > 0 && gang.step % gang.save_every == 0);
  if (saves) return Save(gang);
  StepLater(gang, gang.step_time);
}

std::vector<Ranks::Member*> Ranks::Peers(const Gang& gang) const {
  const coordinator::MembershipOrder* newest = nullptr;
  for (const auto& [id, member] : gang.members) {
    if (member->over || !member->started || member->membership.number == 0) continue;
    if (newest == nullptr || member->membership.number > newest->number) {
      newest = &member->membership;
    }
  }
  std::vector<Member*> peers;
  for (const auto& [id, member] : gang.members) {
    if (newest == nullptr) {
      if (!member->joins) peers.push_back(member);
    } else if (std::find(newest->ranks.begin(), newest->ranks.end(), member->ranks.front()) !=
               newest->ranks.end()) {
      peers.push_back(member);
    }
  }
  size_t ranks = 0;
  for (const Member* member : peers) ranks += member->ranks.size();
  if (newest != nullptr && ranks != newest->ranks.size()) return {};
  const int64_t number = newest == nullptr ? 0 : newest->number;
  for (const Member* member : peers) {
    const bool there = !member->over && member->started && member->membership.number == number &&
                       member->worker->Runs() && (peers.size() == 1 || member->worker->IsReached());
    if (!there) return {};
  }
  return peers;
}

void Ranks::StepTogether(Gang& gang) {
  if (!Lives(gang) || gang.hung || gang.ends || (gang.broken && !gang.training)) return;
  const std::vector<Member*> peers = Peers(gang);
  gang.waits = peers.empty();
  if (!gang.waits) {
    // Those that are to leave do so now.
    for (auto& [id, member] : gang.members) {
      const bool leaves = member->trained && !member->over &&
                          member->membership.number == peers.front()->membership.number &&
                          std::find(peers.begin(), peers.end(), member) == peers.end();
      if (leaves) End(gang, *member, PlacementEvent::kStopped);
    }
    return MakeStep(gang, peers);
  }
  for (auto& [id, member] : gang.members) {
    if (!member->over && member->started && member->worker->Runs()) {
      gang.alive_at = timeline_.now();
      if (gang.stopping) End(gang, *member, PlacementEvent::kStopped);
    }
  }
  StepLater(gang, kPoll);
}

void Ranks::SetMembership(RankListener& worker, const Key& key,
                          const coordinator::MembershipOrder& order) {
  Member* member = Living(worker, key);
  if (member != nullptr && order.number > member->membership.number) member->membership = order;
}

bool Ranks::ComeAndGo(const Key& key) const {
  const auto gang = gangs_.find(key);
  return gang != gangs_.end() && gang->second->elastic;
}

void Ranks::Save(Gang& gang) {
  timeline_.After(timeline_.Between(milliseconds(20), milliseconds(400)), [this, &gang] {
    if (gang.hung || gang.ends || (gang.broken && !gang.elastic)) return;
    const std::vector<Member*> members = Peers(gang);
    if (members.empty()) {
      if (gang.elastic) return StepTogether(gang);
      if (Whole(gang)) Save(gang);
      return;
    }
    if (gang.training) {
      saved_[gang.key.first] = std::max(SavedStep(gang.key.first), gang.step);
      gang.saved = gang.step;
      gang.alive_at = timeline_.now();
      const Member& first = **std::min_element(
          members.begin(), members.end(),
          [](const Member* a, const Member* b) { return a->ranks.front() < b->ranks.front(); });
      CheckpointRecord checkpoint;
      checkpoint.job_id = gang.key.first;
      checkpoint.epoch = gang.key.second;
      checkpoint.step = gang.step;
      checkpoint.path = JoinPath(gang.run_dir, "checkpoints/step-" + std::to_string(gang.step));
      checkpoint.bytes = 1;
      checkpoint.verified = true;
      checkpoint.created_at = timeline_.clock().UnixSeconds();
      first.worker->OnCheckpoint(gang.key, checkpoint, gang.resumed_from);
    }
    if (gang.step >= gang.steps) return EndAll(gang, PlacementEvent::kFinished);
    if (gang.stopping) return EndAll(gang, PlacementEvent::kStopped);
    StepLater(gang, gang.step_time);
  });
}

void Ranks::EndAll(Gang& gang, PlacementEvent event) {
  if (!Lives(gang) || (gang.broken && !(gang.elastic && gang.training))) return;
  const std::vector<Member*> members = Peers(gang);
  if (members.empty()) {
    timeline_.After(kPoll, [this, &gang, event] { EndAll(gang, event); });
    return;
  }
  gang.ends = true;
  for (Member* member : members) {
    timeline_.After(timeline_.Between(milliseconds(1), milliseconds(500)),
                    [this, &gang, member, event] { End(gang, *member, event); });
  }
}

void Ranks::End(Gang& gang, Member& member, PlacementEvent event, Reason reason,
                const std::string& message, int64_t signal) {
  if (member.over) return;
  if (!member.worker->Runs()) {
    // A machine that is frozen says it later.
    timeline_.After(kPoll, [this, &gang, &member, event, reason, message, signal] {
      End(gang, member, event, reason, message, signal);
    });
    return;
  }
  coordinator::PlacementReport report;
  report.epoch = gang.key.second;
  report.event = event;
  report.reason = reason;
  report.message = message;
  report.signal = signal;
  const bool ends = event != PlacementEvent::kStarted && event != PlacementEvent::kTraining;
  if (ends) member.over = true;
  member.worker->OnReport(gang.key, report);
  if (ends && !gang.ends && !(gang.elastic && gang.training)) Break(gang);
}

void Ranks::Break(Gang& gang) {
  gang.broken = true;
  timeline_.After(timeline_.Between(milliseconds(200), seconds(2)),
                  [this, &gang] { FailRest(gang); });
}

void Ranks::FailRest(Gang& gang) {
  if (gang.hung) return;  // they wait for ever
  for (auto& [id, member] : gang.members) {
    if (member->over) continue;
    if (!member->started) {
      Break(gang);  // it finds out once it has started
    } else {
      End(gang, *member, PlacementEvent::kFailed, Reason::kRankDied, "it lost its peers");
    }
  }
}

void Ranks::Stop(RankListener& worker, const Key& key) {
  Member* member = Living(worker, key);
  if (member == nullptr) return;
  Gang& gang = *gangs_.at(key);
  if (gang.ends) return;
  if (gang.elastic && gang.meets && !member->trained) {
    // It only joins.
    timeline_.After(timeline_.Between(milliseconds(10), seconds(1)),
                    [this, &gang, member] { End(gang, *member, PlacementEvent::kStopped); });
    return;
  }
  gang.stopping = true;
  if (gang.meets || gang.hung) return;  // after the step
  timeline_.After(timeline_.Between(milliseconds(10), seconds(1)), [this, &gang, member] {
    if (!gang.meets) End(gang, *member, PlacementEvent::kStopped);
  });
}

void Ranks::Kill(RankListener& worker, const Key& key) {
  Member* member = Living(worker, key);
  if (member == nullptr) return;
  member->over = true;
  Gang& gang = *gangs_.at(key);
  if (!gang.ends && !(gang.elastic && gang.training)) Break(gang);
}

Ranks::Gang* Ranks::SomeThatTrains() {
  std::vector<Gang*> some;
  for (const auto& [key, gang] : gangs_) {
    if (gang->meets && !gang->broken && !gang->ends && !gang->hung && !Peers(*gang).empty()) {
      some.push_back(gang.get());
    }
  }
  return some.empty() ? nullptr : some[static_cast<size_t>(timeline_.Pick(std::ssize(some)))];
}

void Ranks::FailSome() {
  Gang* gang = SomeThatTrains();
  if (gang == nullptr) return;
  const std::vector<Member*> members = Peers(*gang);
  Member& member = *members[static_cast<size_t>(timeline_.Pick(std::ssize(members)))];
  constexpr Reason kReasons[] = {Reason::kRankDied, Reason::kRankDied, Reason::kOutOfMemory,
                                 Reason::kDeviceFailed};
  const Reason reason = kReasons[timeline_.Pick(std::ssize(kReasons))];
  timeline_.Note("a rank of " + NameOf(gang->key) + " on " + member.worker->id() +
                 " fails: " + std::string(Name(reason)));
  End(*gang, member, PlacementEvent::kFailed, reason, "it was made to",
      reason == Reason::kRankDied ? 9 : 0);
}

void Ranks::HangSome() {
  Gang* gang = SomeThatTrains();
  if (gang == nullptr) return;
  timeline_.Note(NameOf(gang->key) + " hangs");
  gang->hung = true;
}

RunningAttempt Ranks::Describe(const RankListener& worker, const Key& key) const {
  RunningAttempt running;
  running.job_id = key.first;
  running.epoch = key.second;
  const auto found = gangs_.find(key);
  if (found == gangs_.end()) return running;
  const Gang& gang = *found->second;
  const auto member = gang.members.find(worker.id());
  const double step_seconds = ToSeconds(gang.step_time);
  if (member != gang.members.end()) running.first_rank = member->second->ranks.front();
  if (member != gang.members.end() && member->second->started) {
    const bool joins = gang.elastic && gang.meets && (gang.waits || !member->second->trained);
    running.activity.activity = joins ? "joining" : gang.meets ? "training" : "starting";
    running.membership = member->second->membership.number;
  } else {
    running.activity.activity = "starting";
  }
  running.activity.silent_seconds = SecondsSince(timeline_.clock(), gang.alive_at);
  running.activity.longest_step_seconds = gang.training ? step_seconds : 0;
  if (!gang.loaded) return running;
  running.progress.step = gang.step;
  running.progress.steps_total = gang.steps;
  running.progress.step_seconds = step_seconds;
  running.progress.loss = 1;
  if (gang.saved) {
    running.progress.checkpoint_step = gang.saved;
  } else {
    running.progress.checkpoint_step = gang.resumed_from;
  }
  return running;
}

}  // namespace weft::simulation
