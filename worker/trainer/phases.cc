#include "worker/trainer/phases.h"

#include <optional>
#include <string>
#include <utility>

#include "common/json.h"
#include "common/spec/phases.h"
#include "common/spec/spec_json.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/engine/checkpoint/manifest.h"
#include "worker/trainer/grown_state.h"

namespace weft::trainer {
namespace {

std::string SummaryPath(const std::string& run_dir) {
  return JoinPath(run_dir, "summary.json");
}

/// Of a phase that is complete; none for others.
Result<std::optional<RunSummary>> ReadSummary(Env& env, const std::string& run_dir) {
  const std::string path = SummaryPath(run_dir);
  if (!env.FileExists(path)) return std::optional<RunSummary>();
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadFile(env, path));
  const auto parse = [&]() -> Result<RunSummary> {
    WEFT_ASSIGN_OR_RETURN(const Json json, ParseJson(text));
    return FromJson<RunSummary>(json);
  };
  Result<RunSummary> summary = parse();
  if (!summary.ok()) return summary.status().WithContext(path);
  return std::optional(*std::move(summary));
}

/// A model without what the data say.
Json WithoutData(ModelSpec model) {
  model.vocab_size = model.classes = 0;
  return ToJson(model);
}

/// Whether a phase that is complete is the one that the job has now.
Status CheckSamePhase(Env& env, const AttemptSpec& attempt, const RunSummary& summary) {
  const Result<engine::CheckpointManifest> manifest =
      engine::ReadManifest(env, engine::CheckpointPath(attempt.run_dir, summary.steps));
  if (!manifest.ok()) {
    return InvalidError(
        "the phase in " + attempt.run_dir +
        " is complete, and its last checkpoint cannot be read: " + manifest.status().message() +
        "; hint: delete the folder, and the job trains this phase again");
  }
  const JobSpec &then = manifest->job, &now = attempt.job;
  if (WithoutData(then.model) == WithoutData(now.model) && then.train.steps == now.train.steps) {
    return OkStatus();
  }
  return InvalidError("the phase in " + attempt.run_dir +
                      " was trained with another model or number of steps than the job has now; "
                      "hint: another --run-dir, or delete the folder and those of later phases");
}

PhaseSummary SummaryOf(const std::string& title, const RunSummary& run) {
  return {title,
          run.steps,
          run.parameters,
          run.tokens,
          run.training_flops,
          run.seconds,
          run.train_loss_nats,
          run.start_validation_loss_nats,
          run.validation_loss_nats};
}

}  // namespace

AttemptSpec AttemptOfPhase(const AttemptSpec& whole, size_t phase) {
  const size_t count = PhaseCount(whole.job);
  const auto folder = [&](size_t of) {
    return of + 1 == count ? whole.run_dir
                           : JoinPath(whole.run_dir, "phase-" + std::to_string(of + 1));
  };
  AttemptSpec attempt = whole;
  attempt.job = JobOfPhase(whole.job, phase);
  attempt.run_dir = folder(phase);
  if (phase == 0) return attempt;
  attempt.start.run_dir = folder(phase - 1);
  attempt.start.growth = whole.job.phases[phase].growth;
  if (const std::optional<size_t> mixed = MixedPhase(whole.job, phase)) {
    attempt.start.larger_run_dir = folder(*mixed);
  }
  return attempt;
}

Result<AttemptOutcome> RunPhases(Env& env, const AttemptSpec& whole,
                                 const std::vector<AttemptSpec>& attempts, Reporter& reporter,
                                 engine::Store& store) {
  if (whole.job.phases.empty()) return RunAttempt(env, attempts.front(), reporter, store);
  std::vector<PhaseSummary> done;
  for (size_t i = 0; i + 1 < attempts.size(); ++i) {
    const std::string title = PhaseTitle(whole.job, i);
    WEFT_ASSIGN_OR_RETURN(std::optional<RunSummary> summary, ReadSummary(env, attempts[i].run_dir));
    if (!summary) {
      reporter.Report(EventMessage{"info", title});
      WEFT_ASSIGN_OR_RETURN(AttemptOutcome outcome, RunAttempt(env, attempts[i], reporter, store));
      if (!outcome.summary) return outcome;
      summary = std::move(outcome.summary);
    } else {
      WEFT_RETURN_IF_ERROR(CheckSamePhase(env, attempts[i], *summary));
    }
    done.push_back(SummaryOf(title, *summary));
  }
  const std::string title = PhaseTitle(whole.job, attempts.size() - 1);
  reporter.Report(EventMessage{"info", title});
  WEFT_ASSIGN_OR_RETURN(AttemptOutcome outcome, RunAttempt(env, attempts.back(), reporter, store));
  if (!outcome.summary) return outcome;
  done.push_back(SummaryOf(title, *outcome.summary));
  outcome.summary->phases = std::move(done);
  WEFT_RETURN_IF_ERROR(
      WriteFileAtomic(env, SummaryPath(whole.run_dir), ToJson(*outcome.summary).dump(2) + "\n"));
  return outcome;
}

}  // namespace weft::trainer
