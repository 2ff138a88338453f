#include "tests/simulation/rules.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "coordinator/recovery/state_machine.h"

namespace weft::simulation {

using coordinator::AttemptRecord;
using coordinator::IsGone;
using coordinator::IsTerminal;
using coordinator::JobOutcome;
using coordinator::JobRecord;
using coordinator::JobState;
using coordinator::JobTransition;
using coordinator::JobTransitions;
using coordinator::LogRecord;
using coordinator::PlacementRecord;
using coordinator::Transaction;

namespace {

/// One change may fire two rows of the table.
bool MayFollow(JobState from, JobState to) {
  std::set<JobState> reached = {from};
  for (int hop = 0; hop < 2; ++hop) {
    for (const JobTransition& row : JobTransitions()) {
      if (row.outcome == JobOutcome::kMove && reached.contains(row.from)) reached.insert(row.to);
    }
  }
  return reached.contains(to);
}

/// Worker and GPU of each rank that may be alive.
std::set<std::pair<std::string, int64_t>> GpusHeld(const AttemptRecord& attempt) {
  std::set<std::pair<std::string, int64_t>> held;
  if (attempt.plan.device != "cuda") return held;
  for (const PlacementRecord& placement : attempt.placements) {
    if (IsGone(placement.state)) continue;
    for (const int64_t rank : placement.ranks) {
      held.emplace(placement.worker_id, attempt.plan.rank_devices[static_cast<size_t>(rank)]);
    }
  }
  return held;
}

}  // namespace

void Rules::Break(const std::string& what) {
  timeline_.Note("BROKEN: " + what);
  broken_.push_back(std::to_string(ToSeconds(timeline_.now())) + " s: " + what);
}

void Rules::See(const Transaction& change) {
  if (change.job) SeeJob(*change.job);
  if (change.attempt) SeeAttempt(*change.attempt);
  if (!change.logs) return;
  for (const LogRecord& line : change.logs->lines) {
    int64_t& last = lines_[{change.logs->job_id, line.epoch, line.rank}];
    last = std::max<int64_t>(last, std::stoll(line.text));
  }
}

void Rules::SeeForgotten(const std::string& job, const LogRecord& line) {
  const auto newest = attempts_.find(job);
  if (newest == attempts_.end() || newest->second.epoch != line.epoch) return;
  if (lines_[{job, line.epoch, line.rank}] >= std::stoll(line.text)) return;
  Break("line " + line.text + " of rank " + std::to_string(line.rank) + " of " + job +
        " is forgotten, and is not stored");
}

void Rules::SeeJob(const JobRecord& job) {
  const auto before = jobs_.find(job.id);
  if (before == jobs_.end()) {
    timeline_.Note(job.id + " is submitted");
    if (job.state != JobState::kQueued)
      Break(job.id + " begins as " + std::string(Name(job.state)));
  } else if (before->second.state != job.state) {
    const std::string move = job.id + " " + std::string(Name(before->second.state)) + " -> " +
                             std::string(Name(job.state));
    timeline_.Note(move + " " + std::string(Name(job.reason)) + " " + job.message);
    if (!MayFollow(before->second.state, job.state)) Break(move);
  }
  if (IsTerminal(job.state) != job.ended_at.has_value()) {
    Break(job.id + " is " + std::string(Name(job.state)) + " and has " +
          (job.ended_at ? "an end" : "no end"));
  }
  jobs_[job.id] = job;
}

void Rules::SeeAttempt(const AttemptRecord& attempt) {
  const auto before = attempts_.find(attempt.job_id);
  const std::string name = attempt.job_id + "@" + std::to_string(attempt.epoch);
  if (before == attempts_.end() || before->second.epoch < attempt.epoch) {
    if (before != attempts_.end() && !before->second.ended_at) {
      Break(name + " begins before attempt " + std::to_string(before->second.epoch) + " has ended");
    }
    SeeStart(attempt);
    const auto wanted = GpusHeld(attempt);
    if (attempt.plan.device == "cuda" &&
        std::ssize(wanted) != std::ssize(attempt.plan.rank_workers)) {
      Break(name + " has two ranks on a GPU");
    }
    for (const auto& [id, other] : attempts_) {
      if (id == attempt.job_id) continue;
      for (const auto& [worker, gpu] : GpusHeld(other)) {
        if (wanted.contains({worker, gpu})) {
          Break(name + " gets GPU " + std::to_string(gpu) + " of " + worker + ", which " + id +
                " has");
        }
      }
    }
  } else if (before->second.epoch > attempt.epoch) {
    Break(name + " is changed after attempt " + std::to_string(before->second.epoch) + " began");
  }
  attempts_[attempt.job_id] = attempt;
  std::map<std::string, int64_t> ranks;
  for (const auto& [id, each] : attempts_) {
    for (const PlacementRecord& placement : each.placements) {
      if (!IsGone(placement.state)) ranks[placement.worker_id] += std::ssize(placement.ranks);
    }
  }
  for (const auto& [worker, number] : ranks) {
    if (number > cores_.at(worker)) {
      Break(name + " makes it " + std::to_string(number) + " ranks on " + worker);
    }
  }
}

void Rules::SeeStart(const AttemptRecord& attempt) {
  const JobRecord& job = jobs_.at(attempt.job_id);
  for (const std::string& before : job.spec.scheduling.after) {
    if (jobs_.at(before).state != JobState::kSucceeded) {
      Break(job.id + " starts, and " + before + " before it has not succeeded");
    }
  }
  int64_t of_group = 1, gpus = std::ssize(GpusHeld(attempt));
  for (const auto& [id, other] : attempts_) {
    if (id == job.id || other.ended_at) continue;
    const JobRecord& there = jobs_.at(id);
    if (!job.spec.scheduling.group.empty() &&
        there.spec.scheduling.group == job.spec.scheduling.group) {
      ++of_group;
    }
    if (there.queue == job.queue) gpus += std::ssize(GpusHeld(other));
  }
  const int64_t most = job.spec.scheduling.group_limit;
  if (most > 0 && of_group > most) Break(job.id + " is one more than its group may have");
  const auto limit = limits_.find(job.queue);
  if (limit != limits_.end() && gpus > limit->second) {
    Break(job.id + " takes its queue to " + std::to_string(gpus) + " GPUs");
  }
}

}  // namespace weft::simulation
