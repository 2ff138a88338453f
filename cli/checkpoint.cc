#include <algorithm>
#include <iostream>
#include <memory>

#include "cli/checkpoint_path.h"
#include "cli/command.h"
#include "common/clock.h"
#include "common/env.h"
#include "common/formats/weight_files.h"
#include "common/spec/phases.h"
#include "proto/convert.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/trainer/base_weights.h"

namespace weft::cli {
namespace {

/// A job, and the step of a checkpoint of it or -1, as `-o name` prints them:
/// "checkpoint/JOB/STEP", "job/JOB"; anything else is a job as it is.
struct NamedCheckpoint {
  std::string job;
  int64_t step = -1;
};

NamedCheckpoint ParseName(const std::string& name) {
  constexpr std::string_view kKind = "checkpoint/";
  if (!name.starts_with(kKind)) return {BareName("job", name)};
  const std::string rest = name.substr(kKind.size());
  const size_t slash = rest.find('/');
  const std::string step = slash == std::string::npos ? "" : rest.substr(slash + 1);
  const bool is_step = !step.empty() && step.size() < 19 &&
                       step.find_first_not_of("0123456789") == std::string::npos;
  if (!is_step) return {name};
  return {rest.substr(0, slash), std::stoll(step)};
}

ExitCode List(const Session& session, const std::string& id) {
  auto checkpoints = session.Connect().ListCheckpoints(id);
  if (!checkpoints.ok()) return Fail(session, checkpoints.status());
  Listing listing{"Checkpoint",
                  {},
                  {},
                  Table({"STEP", "ATTEMPT", "STATE", "SIZE", "CREATED"}),
                  Table({"STEP", "ATTEMPT", "STATE", "SIZE", "CREATED", "PATH"}),
                  false};
  for (const v1::Checkpoint& checkpoint : *checkpoints) {
    std::vector<std::string> row = {
        std::to_string(checkpoint.step()), std::to_string(checkpoint.epoch()),
        checkpoint.verified() ? "VERIFIED" : "WRITTEN",
        HumanBytes(static_cast<double>(checkpoint.bytes())), FormatTime(checkpoint.created_at())};
    listing.items.push_back(ProtoToJson(checkpoint));
    listing.names.push_back("checkpoint/" + checkpoint.job_id() + "/" +
                            std::to_string(checkpoint.step()));
    listing.table.Add(row);
    row.push_back(checkpoint.path());
    listing.wide.Add(row);
  }
  Print(listing, session.output, std::cout);
  return ExitCode::kOk;
}

ExitCode Verify(const Session& session, const std::string& what, int64_t step) {
  auto path = FindCheckpoint(session, what, step);
  if (!path.ok()) return Fail(session, path.status());
  auto manifest = engine::VerifyCheckpoint(Env::Posix(), *path);
  if (!manifest.ok()) return Fail(session, manifest.status());
  const std::string& base = manifest->job.model.import_path;
  const Status of_base = trainer::CheckBase(Env::Posix(), *path, *manifest, base);
  if (!of_base.ok()) return Fail(session, of_base);
  const bool leaves_out = !manifest->base_tensors.empty();
  int64_t bytes = 0;
  for (const engine::CheckpointFile& file : manifest->files) bytes += file.bytes;
  if (session.output == OutputFormat::kJson) {
    Json json = {{"path", *path}, {"step", manifest->step}, {"bytes", bytes}};
    if (leaves_out) json["base"] = base;
    std::cout << json.dump(2) << '\n';
  } else {
    std::cout << *path << ": step " << manifest->step << ", " << manifest->files.size()
              << " files, " << HumanBytes(static_cast<double>(bytes))
              << ", every hash read back and equal"
              << (leaves_out ? ", and that of the frozen weights in " + base : "") << '\n';
  }
  return ExitCode::kOk;
}

/// Those in the folders of all phases of a job, by the steps of the whole job, newest last.
Result<std::vector<engine::CheckpointInfo>> CheckpointsOf(Env& env, const v1::Job& job) {
  WEFT_ASSIGN_OR_RETURN(const JobSpec spec, FromProto<JobSpec>(job.spec()));
  std::vector<engine::CheckpointInfo> all;
  for (size_t phase = 0; phase < PhaseCount(spec); ++phase) {
    WEFT_ASSIGN_OR_RETURN(std::vector<engine::CheckpointInfo> checkpoints,
                          engine::ListCheckpoints(env, PhaseFolder(spec, phase, job.run_dir())));
    for (engine::CheckpointInfo& checkpoint : checkpoints) {
      checkpoint.step += StepsBefore(spec, phase);
      all.push_back(std::move(checkpoint));
    }
  }
  return all;
}

}  // namespace

Result<std::string> FindCheckpoint(const Session& session, const std::string& what, int64_t step) {
  Env& env = Env::Posix();
  if (env.FileExists(JoinPath(what, engine::kManifestName))) return what;
  std::string run_dir = what;
  std::vector<engine::CheckpointInfo> checkpoints;
  if (!env.FileExists(engine::CheckpointsFolder(what))) {
    const NamedCheckpoint named = ParseName(what);
    if (named.step >= 0) step = named.step;
    const Status missing = MissingFileError(env, what,
                                            "config.json (a Hugging Face folder), " +
                                                std::string(engine::kManifestName) +
                                                " (a checkpoint) or checkpoints (a run folder)");
    const bool is_folder = missing.code() != StatusCode::kNotFound;
    if (is_folder || named.job.find('/') != std::string::npos) return missing;
    Result<v1::Job> job = session.Connect().GetJob(named.job);
    if (!job.ok()) return job.status().WithContext(missing.message() + ", and as a job");
    run_dir = job->run_dir();
    WEFT_ASSIGN_OR_RETURN(checkpoints, CheckpointsOf(env, *job));
  } else {
    WEFT_ASSIGN_OR_RETURN(checkpoints, engine::ListCheckpoints(env, run_dir));
  }
  std::string known;
  for (auto it = checkpoints.rbegin(); it != checkpoints.rend(); ++it) {
    if (step < 0 || it->step == step) return it->path;
    known += " " + std::to_string(it->step);
  }
  if (checkpoints.empty()) return NotFoundError(run_dir + " has no checkpoint yet");
  return NotFoundError(run_dir + " has no checkpoint of step " + std::to_string(step) +
                       "; hint: it has those of steps" + known);
}

void AddCheckpointCommands(CLI::App& app, Session& session) {
  CLI::App* checkpoint = app.add_subcommand("ckpt", "See and check checkpoints");
  checkpoint->require_subcommand(1);

  auto id = std::make_shared<std::string>();
  CLI::App* list = AddCommand(*checkpoint, session, "list", "List a job's checkpoints",
                              [&session, id] { return List(session, *id); });
  list->add_option("job", *id, "Job id or a prefix of it")->required();

  auto what = std::make_shared<std::string>();
  auto step = std::make_shared<int64_t>(-1);
  CLI::App* verify =
      AddCommand(*checkpoint, session, "verify", "Read a checkpoint back and compare every hash",
                 [&session, what, step] { return Verify(session, *what, *step); });
  verify->add_option("what", *what, "Job, run folder or checkpoint folder")->required();
  verify->add_option("--step", *step, "Its checkpoint of this step (default: the newest)");
}

}  // namespace weft::cli
