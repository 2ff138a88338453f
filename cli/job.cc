#include <unistd.h>

#include <iostream>
#include <memory>
#include <sstream>

#include "cli/command.h"
#include "cli/follow.h"
#include "cli/job_listing.h"
#include "cli/phase_ledger.h"
#include "cli/terminal_text.h"
#include "cli/time_ledger.h"
#include "common/clock.h"
#include "common/model/memory_text.h"
#include "common/yaml.h"
#include "proto/convert.h"

namespace weft::cli {
namespace {

std::string AgeText(double unix_seconds) {
  return HumanDuration(Clock::System().UnixSeconds() - unix_seconds);
}

std::string ProgressText(const v1::Job& job) {
  const v1::Progress& p = job.progress();
  if (p.steps_total() == 0) return "-";
  return std::to_string(p.step()) + "/" + std::to_string(p.steps_total());
}

}  // namespace

Listing JobListing(const std::vector<v1::Job>& jobs, bool single) {
  Listing listing{"Job",
                  {},
                  {},
                  Table({"ID", "STATE", "STEP", "LOSS", "TOKENS/S", "AGE"}),
                  Table({"ID", "STATE", "REASON", "QUEUE", "PRIORITY", "GROUP", "STEP", "LOSS",
                         "VALIDATION", "TOKENS/S", "ATTEMPTS", "LEFT", "AGE", "RUN DIR"}),
                  single};
  for (const v1::Job& job : jobs) {
    const v1::Progress& p = job.progress();
    bool trained = p.step() > 0;
    std::string loss = trained ? FixedText(p.loss(), 4) : "-";
    std::string rate = trained ? HumanCount(p.tokens_per_second()) : "-";
    std::string age = AgeText(job.submitted_at());
    listing.items.push_back(ProtoToJson(job));
    listing.names.push_back("job/" + job.id());
    listing.table.Add(
        {job.id(), v1::JobState_Name(job.state()), ProgressText(job), loss, rate, age});
    listing.wide.Add(
        {job.id(), v1::JobState_Name(job.state()),
         job.reason() == v1::REASON_UNSPECIFIED ? "-" : v1::Reason_Name(job.reason()), job.queue(),
         std::to_string(job.priority()), job.group().empty() ? "-" : job.group(), ProgressText(job),
         loss, p.has_validation_loss() ? FixedText(p.validation_loss(), 4) : "-", rate,
         std::to_string(job.attempt_count()),
         p.eta_seconds() > 0 ? HumanDuration(p.eta_seconds()) : "-", age, job.run_dir()});
  }
  return listing;
}

ExitCode FollowJob(const Session& session, Client& client, const std::string& id) {
  bool terminal = isatty(STDOUT_FILENO) != 0 && session.output == OutputFormat::kTable;
  FollowView view(std::cout, terminal);
  v1::Job last;
  Status status = client.WatchJob(id, [&](const v1::Job& job) {
    last = job;
    if (!session.quiet) view.Update(job);
    return !IsTerminal(job.state());
  });
  view.Finish();
  if (!status.ok()) return Fail(session, status);
  if (session.output == OutputFormat::kJson || session.output == OutputFormat::kYaml) {
    Print(JobListing({last}, true), session.output, std::cout);
  }
  return ExitCodeOf(last.state());
}

void PrintChanged(const Session& session, const v1::Job& job) {
  if (session.output == OutputFormat::kTable) {
    std::cout << "job " << job.id() << ' ' << v1::JobState_Name(job.state()) << '\n';
  } else {
    Print(JobListing({job}, true), session.output, std::cout);
  }
}

namespace {

std::vector<std::string> JobStateNames() {
  std::vector<std::string> names;
  for (int state = v1::JobState_MIN; state <= v1::JobState_MAX; ++state) {
    if (v1::JobState_IsValid(state) && state != v1::JOB_STATE_UNSPECIFIED) {
      names.push_back(v1::JobState_Name(static_cast<v1::JobState>(state)));
    }
  }
  return names;
}

struct ListOptions {
  std::vector<std::string> states;
  std::string queue;
  std::string group;
  int limit = 100;
};

ExitCode List(const Session& session, const ListOptions& options) {
  v1::ListJobsRequest request;
  request.set_queue(options.queue);
  request.set_group(options.group);
  for (const std::string& name : options.states) {
    v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
    v1::JobState_Parse(name, &state);
    request.add_states(state);
  }
  auto jobs = session.Connect().ListJobs(request, options.limit);
  if (!jobs.ok()) return Fail(session, jobs.status());
  Print(JobListing(*jobs, false), session.output, std::cout);
  return ExitCode::kOk;
}

ExitCode Get(const Session& session, const std::string& id) {
  auto job = session.Connect().GetJob(id);
  if (!job.ok()) return Fail(session, job.status());
  Print(JobListing({*job}, true), session.output, std::cout);
  return ExitCode::kOk;
}

void DescribePlan(const v1::Plan& plan, std::ostream& out) {
  const v1::Prediction& prediction = plan.prediction();
  int64_t recomputed = 0;
  for (const std::string& policy : plan.block_memory_policy()) recomputed += policy == "recompute";
  out << "  plan:        " << plan.rank_workers_size() << " ranks x " << plan.threads_per_rank()
      << " threads, data parallel " << plan.mesh().data() * plan.mesh().expert() << ", micro-batch "
      << plan.micro_batch() << " x " << plan.accumulation_steps() << ", " << plan.precision()
      << ", " << recomputed << " of " << plan.block_memory_policy_size() << " blocks recomputed\n";
  out << "  predicted:   " << HumanDuration(prediction.step_seconds()) << " per step, "
      << HumanCount(prediction.tokens_per_second()) << " tokens/s\n";
  const v1::MemoryBreakdown& memory = prediction.memory_per_rank();
  out << "  memory:      "
      << MemoryText({memory.parameters_bytes(), memory.gradients_bytes(), memory.optimizer_bytes(),
                     memory.activations_bytes(), memory.workspace_bytes(),
                     memory.communication_bytes(), memory.snapshots_bytes(),
                     memory.runtime_bytes()})
      << " per rank\n";
}

}  // namespace

ExitCode DescribeJob(const Session& session, const std::string& id, const std::string& wait) {
  auto job = session.Connect().GetJob(id);
  if (!job.ok()) return Fail(session, job.status());
  if (session.output != OutputFormat::kTable && session.output != OutputFormat::kWide) {
    Print(JobListing({*job}, true), session.output, std::cout);
    return ExitCode::kOk;
  }
  const v1::Progress& p = job->progress();
  std::ostringstream out;
  out << "job:         " << job->id() << "\nstate:       " << StateText(*job) << '\n';
  if (!job->message().empty()) out << "why:         " << ForOneLine(job->message()) << '\n';
  out << wait;
  out << "submitted:   " << FormatTime(job->submitted_at()) << '\n';
  if (job->has_started_at()) out << "started:     " << FormatTime(job->started_at()) << '\n';
  if (job->has_ended_at()) out << "ended:       " << FormatTime(job->ended_at()) << '\n';
  if (job->has_ledger()) out << "time:        " << TimeText(job->ledger()) << '\n';
  out << "run dir:     " << job->run_dir() << '\n';
  if (p.steps_total() > 0) {
    out << "progress:    step " << ProgressText(*job) << ", loss " << FixedText(p.loss(), 4)
        << ", ";
    if (p.has_accuracy()) out << "accuracy " << PercentText(p.accuracy()) << ", ";
    out << HumanCount(p.tokens_per_second()) << " tokens/s";
    if (p.eta_seconds() > 0) out << ", " << HumanDuration(p.eta_seconds()) << " left";
    out << '\n';
  }
  if (const std::string part = PartText(*job); !part.empty()) {
    out << "part:        " << part << '\n';
  }
  if (p.has_validation_loss()) {
    out << "validation:  " << ValidationText(*job) << " after step " << p.validation_step() << '\n';
  }
  if (p.has_checkpoint_step()) out << "checkpoint:  step " << p.checkpoint_step() << '\n';
  if (p.skipped_steps() > 0 || p.rollbacks() > 0) {
    out << "guard:       " << p.skipped_steps() << " updates dropped, " << p.loss_spikes()
        << " of them for a jump of the loss; " << p.rollbacks() << " rollbacks\n";
  }
  if (const auto ledger = PhaseLedger(*job, Clock::System().UnixSeconds()); !ledger.empty()) {
    out << "phase:       " << ForOneLine(PhaseText(*job)) << "\n\n";
    PhaseTable(ledger).Print(out);
    out << '\n';
  }
  for (const v1::Attempt& attempt : job->attempts()) {
    out << "attempt " << attempt.epoch() << ":   from " << FormatTime(attempt.started_at());
    if (attempt.has_ended_at()) {
      out << " to " << FormatTime(attempt.ended_at()) << ", " << v1::Reason_Name(attempt.reason());
      if (!attempt.message().empty()) out << ": " << ForOneLine(attempt.message());
    }
    out << '\n';
    DescribePlan(attempt.plan(), out);
    if (attempt.membership() > 0) {
      out << "  membership:  " << attempt.membership()
          << " (ranks come and go; weft job events says when)\n";
    }
    if (p.step() > 0 && !attempt.has_ended_at() && p.step_seconds() > 0) {
      out << "  measured:    " << HumanDuration(p.step_seconds()) << " per step\n";
    }
  }
  out << "spec:\n";
  std::string spec = ToYaml(ProtoToJson(job->spec()));
  size_t begin = 0;
  for (size_t end; (end = spec.find('\n', begin)) != std::string::npos; begin = end + 1) {
    out << "  " << spec.substr(begin, end - begin) << '\n';
  }
  std::cout << ForTerminal(out.str());
  return ExitCode::kOk;
}

namespace {

ExitCode Describe(const Session& session, const std::string& id) {
  return DescribeJob(session, id, "");
}

/// What happened to a job, oldest first.
ExitCode Events(const Session& session, const std::string& id) {
  auto events = session.Connect().ListEvents(id);
  if (!events.ok()) return Fail(session, events.status());
  Listing listing{"JobEvent",
                  {},
                  {},
                  Table({"TIME", "ATTEMPT", "EVENT", "WHAT"}),
                  Table({"TIME", "ATTEMPT", "EVENT", "WHAT"}),
                  false};
  for (const v1::JobEvent& event : *events) {
    const std::vector<std::string> row = {FormatTime(event.time()),
                                          event.epoch() > 0 ? std::to_string(event.epoch()) : "-",
                                          event.kind(), event.text()};
    listing.items.push_back(ProtoToJson(event));
    listing.names.push_back("event/" + event.kind());
    listing.table.Add(row);
    listing.wide.Add(row);
  }
  Print(listing, session.output, std::cout);
  return ExitCode::kOk;
}

struct LogOptions {
  std::string id;
  bool follow = false;
  int tail = 0;
  int rank = -1;
  int64_t attempt = 0;
  bool prefix = false;
};

ExitCode Logs(const Session& session, const LogOptions& options) {
  Client client = session.Connect();
  v1::StreamLogsRequest request;
  request.set_id(options.id);
  request.set_follow(options.follow);
  request.set_tail(options.tail);
  if (options.rank >= 0) request.set_rank(options.rank);
  if (options.attempt > 0) request.set_epoch(options.attempt);
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  Status status = client.StreamLogs(request, [&](const v1::LogLine& line) {
    if (session.output == OutputFormat::kJson) {
      std::cout << ProtoToJson(line).dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
    } else {
      if (options.prefix) std::cout << '[' << line.epoch() << '/' << line.rank() << "] ";
      std::cout << (terminal ? ForTerminal(line.text()) : line.text()) << '\n';
    }
    if (options.follow) std::cout.flush();
    return true;
  });
  if (!status.ok()) return Fail(session, status);
  if (!options.follow) return ExitCode::kOk;
  auto job = client.GetJob(options.id);
  if (!job.ok()) return Fail(session, job.status());
  return IsTerminal(job->state()) ? ExitCodeOf(job->state()) : ExitCode::kOk;
}

/// Waits for a state. Without one and without a limit this is the follow view.
ExitCode Wait(const Session& session, const std::string& id, const std::string& wanted,
              double limit_seconds) {
  v1::JobState target = v1::JOB_STATE_UNSPECIFIED;
  if (!wanted.empty()) v1::JobState_Parse(wanted, &target);
  Client client = session.Connect();
  if (target == v1::JOB_STATE_UNSPECIFIED && limit_seconds <= 0)
    return FollowJob(session, client, id);
  v1::Job last;
  Status status = client.WatchJob(
      id,
      [&](const v1::Job& job) {
        last = job;
        return !IsTerminal(job.state()) && job.state() != target &&
               (wanted.empty() || CanReach(job.state(), target));
      },
      limit_seconds);
  if (!status.ok()) {
    ExitCode code = Fail(session, status);
    return status.code() == StatusCode::kExhausted ? ExitCode::kWaitTimedOut : code;
  }
  if (!wanted.empty() && last.state() != target) {
    const ExitCode code =
        Fail(session, ConflictError("job " + last.id() + " is " + StateText(last) +
                                    " and does not become " + wanted + " any more"));
    const bool failed = last.state() == v1::FAILED || last.state() == v1::CANCELLED;
    return failed ? ExitCodeOf(last.state()) : code;
  }
  Print(JobListing({last}, true), session.output, std::cout);
  return last.state() == target ? ExitCode::kOk : ExitCodeOf(last.state());
}

/// Ids of the jobs of a group that have not ended.
Result<std::vector<std::string>> JobsOfGroup(Client& client, const std::string& group) {
  constexpr int kMostJobs = 100000;
  v1::ListJobsRequest request;
  request.set_group(group);
  auto jobs = client.ListJobs(request, kMostJobs);
  if (!jobs.ok()) return jobs.status();
  std::vector<std::string> ids;
  for (const v1::Job& job : *jobs) {
    if (!IsTerminal(job.state())) ids.push_back(job.id());
  }
  if (ids.empty()) {
    return NotFoundError("no job of group '" + group +
                         "' is left to cancel; hint: weft job list -o wide");
  }
  return ids;
}

ExitCode Cancel(const Session& session, std::vector<std::string> ids, const std::string& group) {
  Client client = session.Connect();
  if (!group.empty()) {
    Result<std::vector<std::string>> of_group = JobsOfGroup(client, group);
    if (!of_group.ok()) return Fail(session, of_group.status());
    ids.insert(ids.end(), of_group->begin(), of_group->end());
  }
  if (ids.empty()) {
    return Fail(session, InvalidError("no job is named; hint: an id, or --group NAME"));
  }
  ExitCode code = ExitCode::kOk;
  for (const std::string& id : ids) {
    auto job = client.CancelJob(id);
    if (!job.ok()) {
      code = Fail(session, job.status());
    } else {
      PrintChanged(session, *job);
    }
  }
  return code;
}

ExitCode Retry(const Session& session, const std::string& id) {
  auto job = session.Connect().RetryJob(id);
  if (!job.ok()) return Fail(session, job.status());
  Print(JobListing({*job}, true), session.output, std::cout);
  return ExitCode::kOk;
}

ExitCode Delete(const Session& session, const std::vector<std::string>& ids, bool run_dir) {
  Client client = session.Connect();
  ExitCode code = ExitCode::kOk;
  Listing listing{
      "DeletedJob",   {}, {}, Table({"ID", "RUN DIR KEPT"}), Table({"ID", "RUN DIR KEPT"}),
      ids.size() == 1};
  for (const std::string& id : ids) {
    auto deleted = client.DeleteJob(id, run_dir);
    if (!deleted.ok()) {
      code = Fail(session, deleted.status());
      continue;
    }
    const std::string& kept = deleted->kept_run_dir();
    listing.items.push_back(ProtoToJson(*deleted));
    listing.names.push_back("job/" + deleted->id());
    for (Table* table : {&listing.table, &listing.wide}) {
      table->Add({deleted->id(), kept.empty() ? "-" : kept});
    }
  }
  if (!listing.items.empty()) Print(listing, session.output, std::cout);
  return code;
}

void AddList(CLI::App& parent, Session& session, const std::string& name) {
  auto options = std::make_shared<ListOptions>();
  CLI::App* command = AddCommand(parent, session, name, "List jobs, newest first",
                                 [&session, options] { return List(session, *options); });
  command->add_option("--state", options->states, "Only jobs in these states")
      ->delimiter(',')
      ->transform(CLI::IsMember(JobStateNames(), CLI::ignore_case));
  command->add_option("--queue", options->queue, "Only jobs in this queue");
  command->add_option("--group", options->group, "Only jobs of this group");
  command->add_option("--limit", options->limit, "At most this many")->check(CLI::Range(1, 100000));
}

void AddLogs(CLI::App& parent, Session& session) {
  auto options = std::make_shared<LogOptions>();
  CLI::App* command = AddCommand(parent, session, "logs", "Print the log of a job's ranks",
                                 [&session, options] { return Logs(session, *options); });
  command->add_option("job", options->id, "Job id or a prefix of it")->required();
  command->add_flag("--follow,-f", options->follow,
                    "Go on until the job ends; exit with its outcome");
  command->add_option("--tail", options->tail, "Only the newest lines")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--rank", options->rank, "Only this rank")->check(CLI::NonNegativeNumber);
  command->add_option("--attempt", options->attempt, "Only this attempt");
  command->add_flag("--prefix", options->prefix, "Begin each line with [attempt/rank]");
}

/// Registers a command whose one argument is a job.
void AddOnJob(CLI::App& parent, Session& session, const std::string& name,
              const std::string& description, ExitCode (*run)(const Session&, const std::string&)) {
  auto id = std::make_shared<std::string>();
  CLI::App* command = AddCommand(parent, session, name, description,
                                 [&session, id, run] { return run(session, *id); });
  command->add_option("job", *id, "Job id or a prefix of it")->required();
}

void AddCancel(CLI::App& parent, Session& session) {
  struct Options {
    std::vector<std::string> ids;
    std::string group;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = AddCommand(parent, session, "cancel", "Stop jobs", [&session, options] {
    return Cancel(session, options->ids, options->group);
  });
  command->add_option("job", options->ids, "Job ids or prefixes of them");
  command->add_option("--group", options->group, "All jobs of this group that have not ended");
}

void AddDelete(CLI::App& parent, Session& session) {
  struct Options {
    std::vector<std::string> ids;
    bool run_dir = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command =
      AddCommand(parent, session, "delete", "Forget jobs that have ended, with their logs",
                 [&session, options] { return Delete(session, options->ids, options->run_dir); });
  command->add_option("job", options->ids, "Job ids or prefixes of them")->required();
  command->add_flag("--run-dir", options->run_dir,
                    "Delete their run folders, too, with all checkpoints");
}

void AddWait(CLI::App& parent, Session& session) {
  struct Options {
    std::string id;
    std::string state;
    double limit_seconds = 0;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = AddCommand(
      parent, session, "wait", "Wait for a job; exit with its outcome", [&session, options] {
        return Wait(session, options->id, options->state, options->limit_seconds);
      });
  command->add_option("job", options->id, "Job id or a prefix of it")->required();
  command->add_option("--for", options->state, "Until this state (default: until it has ended)")
      ->transform(CLI::IsMember(JobStateNames(), CLI::ignore_case));
  command->add_option("--timeout", options->limit_seconds, "Give up after this many seconds")
      ->check(CLI::NonNegativeNumber);
}

}  // namespace

void AddJobCommands(CLI::App& app, Session& session) {
  CLI::App* job = app.add_subcommand("job", "Submit, watch and stop jobs");
  job->require_subcommand(1);
  AddSubmitCommand(*job, session);
  AddList(*job, session, "list");
  AddOnJob(*job, session, "get", "Show a job", &Get);
  AddOnJob(*job, session, "describe", "Everything known of a job: state, plan, attempts, spec",
           &Describe);
  AddOnJob(*job, session, "events", "What happened to a job: states, failures, drains, retries",
           &Events);
  AddLogs(*job, session);
  AddWait(*job, session);
  AddCancel(*job, session);
  AddDelete(*job, session);
  AddOnJob(*job, session, "retry", "Queue a failed or cancelled job again", &Retry);
  // The daily five, without the noun.
  AddSubmitCommand(app, session);
  AddList(app, session, "ls");
  AddLogs(app, session);
  AddCancel(app, session);
  AddJobQueueCommands(app, *job, session);
}

}  // namespace weft::cli
