// The place of jobs in the queues: `weft job pause`, `resume`, `update` and `explain`.
#include <iostream>
#include <memory>
#include <optional>

#include "cli/command.h"
#include "cli/job_listing.h"
#include "common/duration_text.h"
#include "proto/convert.h"

namespace weft::cli {
namespace {

/// Calls `change` for each job; the exit code of the last that failed.
template <class Change>
ExitCode ChangeEach(const Session& session, const std::vector<std::string>& ids, Change change) {
  Client client = session.Connect();
  ExitCode code = ExitCode::kOk;
  for (const std::string& id : ids) {
    Result<v1::Job> job = change(client, id);
    if (job.ok()) {
      PrintChanged(session, *job);
    } else {
      code = Fail(session, job.status());
    }
  }
  return code;
}

/// "in about 3 min (2 to 5 min)"; empty where nothing is known.
std::string StartText(const v1::ExplainJobResponse& explained) {
  if (!explained.has_start_in_seconds()) return "";
  std::string text = "in about " + HumanDuration(explained.start_in_seconds());
  if (explained.has_earliest_start_in_seconds() && explained.has_latest_start_in_seconds()) {
    text += " (" + HumanDuration(explained.earliest_start_in_seconds()) + " to " +
            HumanDuration(explained.latest_start_in_seconds()) + ")";
  }
  return text;
}

/// What a job waits for and how long, a line each.
std::string WaitText(const v1::ExplainJobResponse& explained) {
  std::string text;
  if (explained.position() > 0) {
    text += "place:       " + std::to_string(explained.position()) + " of " +
            std::to_string(explained.waiting()) + " that wait\n";
  }
  if (const std::string start = StartText(explained); !start.empty()) {
    text += "starts:      " + start + "\n";
  }
  for (int i = 0; i < explained.blocked_by_size(); ++i) {
    text += (i == 0 ? "behind:      " : ", ") + explained.blocked_by(i);
  }
  if (explained.blocked_by_size() > 0) text += '\n';
  for (const std::string& way : explained.would_start_now()) {
    text += "start now:   " + way + "\n";
  }
  return text;
}

ExitCode Explain(const Session& session, const std::string& id) {
  auto explained = session.Connect().ExplainJob(id);
  if (!explained.ok()) return Fail(session, explained.status());
  if (session.output == OutputFormat::kTable || session.output == OutputFormat::kWide) {
    return DescribeJob(session, explained->id(), WaitText(*explained));
  }
  Listing listing{"JobExplanation",
                  {ProtoToJson(*explained)},
                  {"job/" + explained->id()},
                  Table({}),
                  Table({}),
                  true};
  Print(listing, session.output, std::cout);
  return ExitCode::kOk;
}

struct UpdateOptions {
  std::vector<std::string> ids;
  std::optional<std::string> queue;
  std::optional<int64_t> priority;
};

ExitCode Update(const Session& session, const UpdateOptions& options) {
  if (!options.queue && !options.priority) {
    return Fail(session, InvalidError("nothing to update; hint: --queue or --priority"));
  }
  return ChangeEach(session, options.ids, [&](Client& client, const std::string& id) {
    v1::UpdateJobRequest request;
    request.set_id(id);
    if (options.queue) request.set_queue(*options.queue);
    if (options.priority) request.set_priority(*options.priority);
    return client.UpdateJob(request);
  });
}

void AddUpdate(CLI::App& parent, Session& session) {
  auto options = std::make_shared<UpdateOptions>();
  CLI::App* command =
      AddCommand(parent, session, "update", "Move jobs to another queue or priority",
                 [&session, options] { return Update(session, *options); });
  command->add_option("job", options->ids, "Job ids or prefixes of them")->required();
  command->add_option("--queue", options->queue, "Queue to move to");
  command->add_option("--priority", options->priority, "Jobs of a higher one go first")
      ->check(CLI::Range(-1000, 1000));
}

void AddOnJobs(CLI::App& parent, Session& session, const std::string& name,
               const std::string& description,
               Result<v1::Job> (Client::*change)(const std::string&)) {
  auto ids = std::make_shared<std::vector<std::string>>();
  CLI::App* command = AddCommand(parent, session, name, description, [&session, ids, change] {
    return ChangeEach(session, *ids, [change](Client& client, const std::string& id) {
      return (client.*change)(id);
    });
  });
  command->add_option("job", *ids, "Job ids or prefixes of them")->required();
}

}  // namespace

void AddJobQueueCommands(CLI::App& app, CLI::App& job, Session& session) {
  AddOnJobs(job, session, "pause", "Have jobs save a checkpoint, stop and wait", &Client::PauseJob);
  AddOnJobs(job, session, "resume", "Queue paused jobs again", &Client::ResumeJob);
  AddUpdate(job, session);
  for (CLI::App* parent : {&job, &app}) {
    auto id = std::make_shared<std::string>();
    CLI::App* command = AddCommand(
        *parent, session, "explain",
        "Why a job is where it is: what it waits for, how long, and what would start it now",
        [&session, id] { return Explain(session, *id); });
    command->add_option("job", *id, "Job id or a prefix of it")->required();
  }
}

}  // namespace weft::cli
