// `weft job submit`: one job, or an array of them.
#include <iostream>
#include <memory>

#include "cli/command.h"
#include "cli/job_array.h"
#include "cli/job_file.h"
#include "cli/job_listing.h"
#include "common/spec/spec_json.h"
#include "common/yaml.h"
#include "proto/convert.h"

namespace weft::cli {
namespace {

/// Whether the coordinator, and so what it starts, has the files of this machine.
bool RunsHere(const std::string& server) {
  return server.starts_with("127.") || server.starts_with("localhost:") ||
         server.starts_with("[::1]") || server.starts_with("unix:");
}

struct SubmitOptions {
  std::string file;
  std::string request_id;
  bool follow = false;
  bool dry_run = false;
  std::vector<std::string> array;
  int64_t array_limit = 0;
};

/// Submits one job for each value of the array's fields.
ExitCode SubmitArray(const Session& session, const SubmitOptions& options, DataCheck check) {
  if (options.follow) {
    return Fail(session, InvalidError("--follow shows one job; hint: weft job list --group"));
  }
  const std::string request_id = options.request_id.empty() ? RandomId() : options.request_id;
  Result<std::vector<JobSpec>> jobs =
      LoadJobArray(options.file, options.array, options.array_limit, request_id, check);
  if (!jobs.ok()) return Fail(session, jobs.status());
  if (options.dry_run) {
    for (const JobSpec& job : *jobs) std::cout << "---\n" << ToYaml(ToJson(job));
    return ExitCode::kOk;
  }
  Client client = session.Connect();
  std::vector<v1::Job> submitted;
  for (size_t i = 0; i < jobs->size(); ++i) {
    auto response = client.SubmitJob(ToProto<v1::JobSpec>((*jobs)[i]),
                                     request_id + "-" + std::to_string(i + 1));
    if (!response.ok()) {
      return Fail(session, response.status().WithContext("job " + std::to_string(i + 1) + " of " +
                                                         std::to_string(jobs->size()) +
                                                         "; those before it are submitted"));
    }
    submitted.push_back(response->job());
  }
  if (session.output != OutputFormat::kTable && session.output != OutputFormat::kWide) {
    Print(JobListing(submitted, false), session.output, std::cout);
    return ExitCode::kOk;
  }
  const std::string& group = jobs->front().scheduling.group;
  std::cout << submitted.size() << " jobs of group " << group << " submitted\n";
  if (!session.quiet) {
    std::cout << "see them:   weft job list --group " << group
              << "\nstop them:  weft job cancel --group " << group << '\n';
  }
  return ExitCode::kOk;
}

ExitCode Submit(const Session& session, const SubmitOptions& options) {
  const DataCheck check = RunsHere(session.server) ? DataCheck::kAll : DataCheck::kPresent;
  if (!options.array.empty()) return SubmitArray(session, options, check);
  Result<JobSpec> job = LoadJobFile(options.file, check);
  if (!job.ok()) return Fail(session, job.status());
  if (options.dry_run) {
    std::cout << ToYaml(ToJson(*job));
    return ExitCode::kOk;
  }
  Client client = session.Connect();
  std::string request_id = options.request_id.empty() ? RandomId() : options.request_id;
  auto response = client.SubmitJob(ToProto<v1::JobSpec>(*job), request_id);
  if (!response.ok()) return Fail(session, response.status());
  const std::string& id = response->job().id();
  if (session.output == OutputFormat::kTable || session.output == OutputFormat::kWide) {
    std::cout << (response->already_submitted() ? "job " + id + " was submitted before\n"
                                                : "job " + id + " submitted\n");
    if (!options.follow && !session.quiet) {
      std::cout << "follow it:  weft job wait " << id << "\nits log:    weft logs -f " << id
                << "\nstop it:    weft cancel " << id << '\n';
    }
  } else if (!options.follow) {
    Print(JobListing({response->job()}, true), session.output, std::cout);
  }
  std::cout.flush();
  return options.follow ? FollowJob(session, client, id) : ExitCode::kOk;
}

}  // namespace

void AddSubmitCommand(CLI::App& parent, Session& session) {
  auto options = std::make_shared<SubmitOptions>();
  CLI::App* command = AddCommand(parent, session, "submit", "Submit a job file",
                                 [&session, options] { return Submit(session, *options); });
  command->add_option("file", options->file, "Job file, YAML or JSON; - reads standard input")
      ->required();
  command->add_option("--request-id", options->request_id,
                      "Identity of this submission: sent again, it returns the same job");
  command->add_flag("--follow,-f", options->follow, "Follow the job; exit with its outcome");
  command->add_flag("--dry-run", options->dry_run,
                    "Check the file and print it with every default filled in");
  command
      ->add_option("--array", options->array,
                   "FIELD=V1,V2,...: a job for each value, all of one group; repeated: for each "
                   "combination")
      ->allow_extra_args(false);
  command->add_option("--array-limit", options->array_limit, "Jobs of the array that run at once")
      ->check(CLI::Range(int64_t{1}, int64_t{1000000}));
}

}  // namespace weft::cli
