#include "coordinator/scheduler/decision_record.h"

#include <algorithm>
#include <utility>

#include "common/spec/spec_json.h"

namespace weft::coordinator {
namespace {

template <class T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json RulesToJson(const SchedulerRules& rules) {
  const ScaleUpRules& scale_up = rules.scale_up;
  return Json::array({rules.age_factor, rules.preempt_factor, rules.protected_seconds,
                      rules.most_preemptions, rules.prediction_error, rules.share_exponent,
                      scale_up.after_seconds, scale_up.least_gain, scale_up.most_doublings,
                      scale_up.restart.least_payback, scale_up.restart.assumed_start_seconds,
                      rules.spare_workers});
}

SchedulerRules RulesFromJson(const Json& json) {
  SchedulerRules rules;
  rules.age_factor = json.at(0);
  rules.preempt_factor = json.at(1);
  rules.protected_seconds = json.at(2);
  rules.most_preemptions = json.at(3);
  rules.prediction_error = json.at(4);
  rules.share_exponent = json.at(5);
  rules.scale_up.after_seconds = json.at(6);
  rules.scale_up.least_gain = json.at(7);
  rules.scale_up.most_doublings = json.at(8);
  rules.scale_up.restart.least_payback = json.at(9);
  rules.scale_up.restart.assumed_start_seconds = json.at(10);
  // Records of earlier versions have none: what they saw was already without spares.
  if (json.size() > 11) rules.spare_workers = json.at(11);
  return rules;
}

Json FreeToJson(const FreeMap& free) {
  Json json = Json::object();
  for (const auto& [id, room] : free) {
    json[id] = Json::array({room.cores, room.memory_bytes, room.devices});
  }
  return json;
}

FreeMap FreeFromJson(const Json& json) {
  FreeMap free;
  for (const auto& [id, room] : json.items()) {
    free[id] = {room.at(0), room.at(1), room.at(2).get<std::set<int64_t>>()};
  }
  return free;
}

Json LinksToJson(const std::vector<MeasuredLink>& links) {
  Json json = Json::array();
  for (const MeasuredLink& link : links) json.push_back({link.one, link.other, link.level});
  return json;
}

std::vector<MeasuredLink> LinksFromJson(const Json& json) {
  std::vector<MeasuredLink> links;
  for (const Json& row : json) {
    links.push_back(
        {row.at(0).get<std::string>(), row.at(1).get<std::string>(), row.at(2).get<int64_t>()});
  }
  return links;
}

Json PlaceOf(const Plan& plan) {
  return Json::array(
      {plan.rank_workers, plan.rank_devices, plan.threads_per_rank, plan.prediction.step_seconds});
}

/// Jobs that must not start yet, which decide nothing: the first of a pass say enough.
constexpr size_t kMostHeld = 500;

Json HeldToJson(const std::vector<HeldJob>& held) {
  Json json = Json::array();
  for (const HeldJob& job : held) {
    if (json.size() == kMostHeld) break;
    json.push_back({job.id, job.why, job.blocked_by});
  }
  return json;
}

std::vector<HeldJob> HeldFromJson(const Json& json) {
  std::vector<HeldJob> held;
  for (const Json& row : json) {
    held.push_back({row.at(0).get<std::string>(), row.at(1).get<std::string>(),
                    row.at(2).get<std::vector<std::string>>()});
  }
  return held;
}

/// What a pass decided, as it is compared, without its last `left_out` waits.
Json DecisionsToJson(const SchedulerDecisions& decisions, size_t left_out = 0) {
  Json starts = Json::array(), preemptions = Json::array(), resizes = Json::array(),
       joins = Json::array(), waits = Json::array();
  for (const StartDecision& start : decisions.starts) {
    starts.push_back({start.job_id, PlaceOf(start.plan)});
  }
  for (const PreemptDecision& preemption : decisions.preemptions) {
    preemptions.push_back({preemption.job_id, preemption.for_job, preemption.why});
  }
  for (const ResizeDecision& resize : decisions.resizes) {
    resizes.push_back(
        {resize.job_id, resize.for_job, PlaceOf(resize.change.plan), resize.change.why});
  }
  for (const JoinDecision& join : decisions.joins) joins.push_back({join.job_id, join.worker_id});
  for (size_t i = 0; i + left_out < decisions.waits.size(); ++i) {
    const WaitDecision& wait = decisions.waits[i];
    waits.push_back({wait.job_id, Name(wait.reason), wait.message, OrNull(wait.start_in_seconds)});
  }
  return {{"starts", starts},
          {"preemptions", preemptions},
          {"resizes", resizes},
          {"joins", joins},
          {"waits", waits}};
}

/// "starts[2]: recorded ..., now ..."; empty: they are equal.
std::string FirstDifference(const Json& recorded, const Json& now) {
  for (const char* kind : {"starts", "preemptions", "resizes", "joins", "waits"}) {
    // In records of earlier versions nobody joined.
    const Json before = recorded.value(kind, Json::array());
    const Json& after = now.at(kind);
    for (size_t i = 0; i < std::max(before.size(), after.size()); ++i) {
      const Json one = i < before.size() ? before[i] : Json();
      const Json other = i < after.size() ? after[i] : Json();
      if (one != other) {
        return std::string(kind) + "[" + std::to_string(i) + "]: recorded " + one.dump() +
               ", now " + other.dump();
      }
    }
  }
  return "";
}

/// planned_long, or why no plan is looked for now.
Json PlanningOf(const QueuedJob& job) {
  return job.given_up_reason != nullptr ? Json(*job.given_up_reason) : Json(job.planned_long);
}

/// As a planner reports one plan.
PlanReport ReportOf(Plan plan) {
  PlanReport report;
  PlanCandidate& candidate = report.candidates.emplace_back();
  candidate.chosen = candidate.feasible = true;
  candidate.plan = std::move(plan);
  return report;
}

}  // namespace

PlanFunction Recording(const PlanFunction& plan, PlanAnswers& answers) {
  return
      [plan, &answers](const JobSpec& spec, const ClusterProfile& cluster) -> Result<PlanReport> {
        Result<PlanReport> report = plan(spec, cluster);
        // A pass sees nothing else of a report.
        answers.push_back(
            BestPlan(spec, cluster, [&](const JobSpec&, const ClusterProfile&) { return report; }));
        return report;
      };
}

int64_t PassWriter::Intern(std::string text, Json& added) {
  auto it = numbers_.find(text);
  if (it != numbers_.end()) return it->second;
  const auto number = static_cast<int64_t>(numbers_.size());
  added[std::to_string(number)] = Json::parse(text);
  numbers_.emplace(std::move(text), number);
  return number;
}

int64_t PassWriter::SpecOf(const std::string& job_id, const JobSpec& spec, Json& added) {
  // A job has one spec for each phase, and phases end at different steps.
  const auto [it, unseen] = specs_.try_emplace({job_id, spec.train.steps});
  if (unseen) it->second = Intern(ToJson(spec).dump(), added);
  return it->second;
}

Json PassWriter::PlanOf(const Plan* plan, Json& added) {
  return plan != nullptr ? Json(Intern(ToJson(*plan).dump(), added)) : Json();
}

Json PassWriter::Queued(const QueuedJob& job, Json& added) {
  Json row = Json::array({job.id, SpecOf(job.id, *job.spec, added), PlanOf(job.last_plan, added),
                          job.out_of_memory, job.ran_out_of_memory, job.replanned,
                          PlanOf(job.next_plan, added), PlanningOf(job),
                          job.infeasible_reason != nullptr ? Json(*job.infeasible_reason) : Json(),
                          job.queue, job.priority, job.submitted_at, job.steps_left,
                          job.step_seconds, job.preemptions, job.promised});
  row.push_back(job.size
                    ? Json{job.size->amount.gpus, job.size->amount.cores, job.size->step_seconds}
                    : Json());
  row.push_back(job.recovers);
  return row;
}

Json PassWriter::Active(const ActiveJob& job, Json& added) {
  const RunningJob& running = job.job;
  const AttemptHistory& history = running.history;
  return Json::array({job.id,
                      SpecOf(job.id, *running.spec, added),
                      PlanOf(running.plan, added),
                      job.queue,
                      job.priority,
                      job.preemptible,
                      job.submitted_at,
                      job.unsaved_seconds,
                      job.preemptions,
                      job.may_stop,
                      job.stopping,
                      PlanOf(job.next_plan, added),
                      running.attempt_seconds,
                      running.steps_left,
                      running.step_seconds,
                      running.median_step_seconds,
                      OrNull(running.start_seconds),
                      running.saved,
                      running.went_back,
                      history.undone,
                      history.most_compute,
                      history.ran_out_of_memory,
                      history.replanned,
                      OrNull(running.no_peers_on),
                      running.joining});
}

std::string PassWriter::Write(const SchedulerSnapshot& snapshot, const PlanAnswers& answers,
                              const SchedulerDecisions& decisions) {
  Json added = Json::object(), queue = Json::array(), active = Json::array(),
       queues = Json::array(), plans = Json::array();
  for (const QueuedJob& job : snapshot.queue) queue.push_back(Queued(job, added));
  for (const ActiveJob& job : snapshot.active) active.push_back(Active(job, added));
  for (const QueueSpec& spec : snapshot.queues) queues.push_back(ToJson(spec));
  for (const Result<Plan>& answer : answers) {
    if (answer.ok()) {
      plans.push_back(PlanOf(&*answer, added));
    } else {
      plans.push_back({static_cast<int>(answer.status().code()), answer.status().message()});
    }
  }
  const size_t held = snapshot.held.size();
  const size_t held_left_out = held - std::min(held, kMostHeld);
  const int64_t cluster = Intern(ToJson(snapshot.cluster).dump(), added);
  return Json{{"now", snapshot.now},
              {"cluster", cluster},
              {"queues", Intern(queues.dump(), added)},
              {"rules", RulesToJson(snapshot.rules)},
              {"new_workers", snapshot.new_workers},
              {"free", FreeToJson(snapshot.free)},
              {"links", Intern(LinksToJson(snapshot.links).dump(), added)},
              {"queue", queue},
              {"held", HeldToJson(snapshot.held)},
              {"active", active},
              {"plans", plans},
              {"decisions", DecisionsToJson(decisions, held_left_out)},
              {"added", added}}
      .dump();
}

Status PassReplay::Learn(const Json& added) {
  for (const auto& [number, text] : added.items()) texts_[std::stoll(number)] = text;
  return OkStatus();
}

Result<const Plan*> PassReplay::PlanAt(const Json& number) {
  if (number.is_null()) return nullptr;
  auto it = plans_.find(number);
  if (it == plans_.end()) {
    WEFT_ASSIGN_OR_RETURN(Plan plan, FromJson<Plan>(texts_.at(number)));
    it = plans_.emplace(number, std::move(plan)).first;
  }
  return &it->second;
}

Status PassReplay::Run(std::string_view line) {
  WEFT_ASSIGN_OR_RETURN(const Json pass, ParseJson(line, {.bytes = size_t{1} << 30, .depth = 64}));
  // What has the wrong shape throws.
  try {
    WEFT_RETURN_IF_ERROR(Learn(pass.at("added")));
    SchedulerSnapshot snapshot;
    snapshot.now = pass.at("now");
    snapshot.rules = RulesFromJson(pass.at("rules"));
    snapshot.free = FreeFromJson(pass.at("free"));
    // Records of versions that knew no links have none.
    if (pass.contains("links")) snapshot.links = LinksFromJson(texts_.at(pass.at("links")));
    // Nor have older ones the jobs that were held back.
    if (pass.contains("held")) snapshot.held = HeldFromJson(pass.at("held"));
    snapshot.new_workers = pass.at("new_workers").get<std::set<std::string>>();
    WEFT_ASSIGN_OR_RETURN(snapshot.cluster,
                          FromJson<ClusterProfile>(texts_.at(pass.at("cluster"))));
    for (const Json& queue : texts_.at(pass.at("queues"))) {
      WEFT_ASSIGN_OR_RETURN(QueueSpec spec, FromJson<QueueSpec>(queue));
      snapshot.queues.push_back(std::move(spec));
    }
    const auto spec_at = [this](const Json& number) -> Result<const JobSpec*> {
      auto it = specs_.find(number);
      if (it == specs_.end()) {
        WEFT_ASSIGN_OR_RETURN(JobSpec spec, FromJson<JobSpec>(texts_.at(number)));
        it = specs_.emplace(number, std::move(spec)).first;
      }
      return &it->second;
    };
    std::deque<std::string> reasons;
    for (const Json& row : pass.at("queue")) {
      QueuedJob& job = snapshot.queue.emplace_back();
      job.id = row.at(0);
      WEFT_ASSIGN_OR_RETURN(job.spec, spec_at(row.at(1)));
      WEFT_ASSIGN_OR_RETURN(job.last_plan, PlanAt(row.at(2)));
      job.out_of_memory = row.at(3);
      job.ran_out_of_memory = row.at(4);
      job.replanned = row.at(5);
      WEFT_ASSIGN_OR_RETURN(job.next_plan, PlanAt(row.at(6)));
      if (const Json& planning = row.at(7); planning.is_string()) {
        job.given_up_reason = &reasons.emplace_back(planning.get<std::string>());
      } else {
        job.planned_long = planning;
      }
      if (!row.at(8).is_null()) {
        job.infeasible_reason = &reasons.emplace_back(row.at(8).get<std::string>());
      }
      job.queue = row.at(9);
      job.priority = row.at(10);
      job.submitted_at = row.at(11);
      job.steps_left = row.at(12);
      job.step_seconds = row.at(13);
      job.preemptions = row.at(14);
      job.promised = row.at(15);
      if (row.size() > 16 && !row.at(16).is_null()) {
        const Json& size = row.at(16);
        job.size = JobSize{{size.at(0), size.at(1)}, size.at(2)};
      }
      if (row.size() > 17) job.recovers = row.at(17);
    }
    for (const Json& row : pass.at("active")) {
      ActiveJob& job = snapshot.active.emplace_back();
      RunningJob& running = job.job;
      job.id = row.at(0);
      WEFT_ASSIGN_OR_RETURN(running.spec, spec_at(row.at(1)));
      WEFT_ASSIGN_OR_RETURN(running.plan, PlanAt(row.at(2)));
      job.queue = row.at(3);
      job.priority = row.at(4);
      job.preemptible = row.at(5);
      job.submitted_at = row.at(6);
      job.unsaved_seconds = row.at(7);
      job.preemptions = row.at(8);
      job.may_stop = row.at(9);
      job.stopping = row.at(10);
      WEFT_ASSIGN_OR_RETURN(job.next_plan, PlanAt(row.at(11)));
      running.attempt_seconds = row.at(12);
      running.steps_left = row.at(13);
      running.step_seconds = row.at(14);
      running.median_step_seconds = row.at(15);
      if (!row.at(16).is_null()) running.start_seconds = row.at(16).get<double>();
      running.saved = row.at(17);
      running.went_back = row.at(18);
      running.history.undone = row.at(19);
      running.history.most_compute = row.at(20);
      running.history.ran_out_of_memory = row.at(21);
      running.history.replanned = row.at(22);
      if (row.size() > 23 && !row.at(23).is_null()) {
        running.no_peers_on = row.at(23).get<std::set<std::string>>();
      }
      if (row.size() > 24) running.joining = row.at(24);
    }
    PlanAnswers answers;
    for (const Json& answer : pass.at("plans")) {
      if (answer.is_array()) {
        answers.push_back(
            Status(static_cast<weft::StatusCode>(answer.at(0).get<int>()), answer.at(1)));
        continue;
      }
      WEFT_ASSIGN_OR_RETURN(const Plan* plan, PlanAt(answer));
      answers.push_back(*plan);
    }
    size_t asked = 0;
    const SchedulerDecisions decisions =
        Schedule(snapshot, [&](const JobSpec&, const ClusterProfile&) -> Result<PlanReport> {
          if (asked == answers.size()) return InternalError("no plan was asked for here");
          const Result<Plan>& answer = answers[asked++];
          if (!answer.ok()) return answer.status();
          return ReportOf(*answer);
        });
    const std::string difference =
        FirstDifference(pass.at("decisions"), DecisionsToJson(decisions));
    if (!difference.empty()) return ConflictError(difference);
    if (asked != answers.size()) {
      return ConflictError("plans: recorded " + std::to_string(answers.size()) + ", now " +
                           std::to_string(asked));
    }
  } catch (const std::exception& error) {
    return CorruptError(std::string("not a recorded pass: ") + error.what());
  }
  return OkStatus();
}

Status ReplayDecisions(std::string_view lines) {
  PassReplay replay;
  for (int64_t pass = 1; !lines.empty(); ++pass) {
    const size_t end = lines.find('\n');
    // A line without its end was being written.
    if (end == std::string_view::npos) break;
    const Status status = replay.Run(lines.substr(0, end));
    if (!status.ok()) {
      return Status(status.code(), "pass " + std::to_string(pass) + ": " + status.message());
    }
    lines.remove_prefix(end + 1);
  }
  return OkStatus();
}

}  // namespace weft::coordinator
