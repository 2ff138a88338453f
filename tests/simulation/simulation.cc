#include "tests/simulation/simulation.h"

#include <algorithm>

namespace weft::simulation {

using coordinator::ServiceOptions;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

namespace {

/// It is disturbed for so long.
constexpr minutes kTrouble{5};
/// After that, each job must end within this time.
constexpr minutes kPatience{60};

}  // namespace

Simulation::Simulation(uint64_t seed)
    : timeline_(seed),
      rules_(timeline_),
      coordinator_(timeline_, rules_, Options(seed)),
      ranks_(timeline_, rules_) {
  int64_t gpus = 0, largest = 0;
  std::vector<std::string> names;
  for (int64_t left = 2 + timeline_.Pick(4); left > 0; --left) {
    names.push_back("w" + std::to_string(names.size()));
    workers_.push_back(std::make_unique<Worker>(timeline_, coordinator_, rules_, ranks_,
                                                names.back(), 1 + timeline_.Pick(3)));
    gpus += workers_.back()->gpus();
    rules_.SetCores(names.back(), workers_.back()->gpus());
    largest = std::max(largest, workers_.back()->gpus());
  }
  // No new job starts on a spare worker.
  if (has_spare_) gpus -= largest;
  const int64_t machines = std::ssize(workers_) - (has_spare_ ? 1 : 0);
  users_ = std::make_unique<Users>(timeline_, coordinator_, rules_, names, gpus, machines);
  pause_ = timeline_.Between(seconds(1), seconds(30));
}

ServiceOptions Simulation::Options(uint64_t seed) {
  ServiceOptions options;
  options.simulation_seed = seed << 20;
  options.run_root = "/nowhere";
  options.retry.most_seconds = 30;
  options.links_per_machine = 0;
  if (timeline_.Chance(0.5)) options.health.limit = {};
  options.scale_up.after_seconds = timeline_.Chance(0.5) ? 10 : 0;
  has_spare_ = timeline_.Chance(0.2);
  options.spare_workers = has_spare_ ? 1 : 0;
  options.stop_limit = seconds(20);
  QueueSpec& narrow = options.queues.queues.emplace_back();
  narrow.name = kNarrowQueue;
  narrow.limit_gpus = kNarrowGpus;
  rules_.SetLimit(kNarrowQueue, kNarrowGpus);
  return options;
}

void Simulation::Run() {
  coordinator_.Start();
  for (const auto& worker : workers_) worker->Boot();
  for (int64_t jobs = 2 + timeline_.Pick(9); jobs > 0; --jobs) {
    timeline_.After(timeline_.Between(Duration(0), kTrouble), [this] { users_->Submit(); });
  }
  DisturbUntil(kTrouble);
  RunUntil(kTrouble);
  while (timeline_.now() < kTrouble + kPatience && broken().empty() && !users_->AllEnded()) {
    users_->Settle();
    RunUntil(timeline_.now() + seconds(10));
  }
  if (broken().empty()) {
    for (const std::string& job : users_->Unfinished()) rules_.Break("it never ends: " + job);
  }
  RunUntil(timeline_.now() + minutes(2));  // what is under way arrives
  if (broken().empty()) users_->Check(ranks_);
}

void Simulation::RunUntil(Duration end) {
  while (broken().empty()) {
    coordinator_.RunReady();
    Duration next = end;
    if (const auto event = timeline_.Next()) next = std::min(next, *event);
    if (const auto timer = coordinator_.NextTimer()) next = std::min(next, *timer);
    if (next >= end) break;
    timeline_.RunTo(next);
  }
  timeline_.RunTo(end);
}

void Simulation::DisturbUntil(Duration end) {
  timeline_.After(timeline_.Between(Duration(0), 2 * pause_), [this, end] {
    if (timeline_.now() >= end) return;
    ++disturbances_;
    Disturb();
    DisturbUntil(end);
  });
}

void Simulation::Disturb() {
  Worker& worker = *workers_[static_cast<size_t>(timeline_.Pick(std::ssize(workers_)))];
  const auto a_while = [&](Duration most) { return timeline_.Between(milliseconds(50), most); };
  switch (timeline_.Pick(12)) {
    case 0:
      return worker.Crash(a_while(seconds(30)), false);
    case 1:
      return worker.Crash(a_while(seconds(60)), true);
    case 2:
      return worker.Freeze(a_while(seconds(30)));
    case 3:
      return worker.Cut(a_while(seconds(30)));
    case 4:
      return worker.Drain();
    case 5:
    case 6:
      return coordinator_.Die(a_while(seconds(timeline_.Chance(0.3) ? 30 : 2)));
    case 7:
      return coordinator_.FailStore(a_while(seconds(15)));
    case 8:
      return ranks_.FailSome();
    case 9:
      return ranks_.HangSome();
    default:
      return users_->Meddle();
  }
}

}  // namespace weft::simulation
