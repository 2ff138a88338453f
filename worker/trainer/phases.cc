#include "worker/trainer/phases.h"

#include <optional>
#include <string>
#include <utility>

#include "common/failpoint.h"
#include "common/json.h"
#include "common/spec/phases.h"
#include "common/spec/planned_job.h"
#include "common/spec/spec_json.h"
#include "worker/engine/comm/prefix_store.h"
#include "worker/trainer/same_phase.h"
#include "worker/trainer/size_search.h"

namespace weft::trainer {
namespace {

std::string SummaryPath(const std::string& run_dir) {
  return JoinPath(run_dir, "summary.json");
}

/// Reads the summary of a phase that is complete; none for others.
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

PhaseSummary SummaryOf(const std::string& title, const RunSummary& run) {
  return {title,
          run.chosen_layers,
          run.chosen_image_size,
          run.steps,
          run.parameters,
          run.tokens,
          run.training_flops,
          run.seconds,
          run.train_loss_nats,
          run.start_validation_loss_nats,
          run.validation_loss_nats};
}

/// What the phases before `phase` came to, each in its place. Of one whose summary is lost only the
/// title is known.
Result<std::vector<PhaseSummary>> EarlierPhases(Env& env, const AttemptSpec& whole, size_t phase,
                                                Reporter& reporter) {
  std::vector<PhaseSummary> phases;
  for (size_t i = 0; i < phase; ++i) {
    const std::string folder = PhaseFolder(whole.job, i, whole.run_dir);
    const std::string title = PhaseTitle(whole.job, i);
    WEFT_ASSIGN_OR_RETURN(const std::optional<RunSummary> before, ReadSummary(env, folder));
    if (before) {
      phases.push_back(SummaryOf(title, *before));
      continue;
    }
    phases.emplace_back().phase = title;
    reporter.Report(EventMessage{"warning", SummaryPath(folder) + " is missing: what " + title +
                                                " took is left out of the summary"});
  }
  return phases;
}

/// Has the choice that the search of the size of a phase came to, now or before; none where it was
/// stopped.
Result<AttemptOutcome> Search(Env& env, const AttemptSpec& attempt, const PhaseSearchSpec& search,
                              Reporter& reporter, engine::Store& store) {
  const AttemptSpec first = AttemptOfSearch(attempt);
  AttemptOutcome outcome;
  WEFT_ASSIGN_OR_RETURN(outcome.choice, ReadSizeChoice(env, first.run_dir));
  if (!outcome.choice) {
    // What is left of the phase meets in the same store.
    engine::PrefixStore own(&store, "search/");
    WEFT_ASSIGN_OR_RETURN(outcome, RunAttempt(env, first, reporter, own, search));
  }
  if (outcome.choice) {
    WEFT_RETURN_IF_ERROR(
        CheckSameSearch(*outcome.choice, search, attempt.job.model, first.run_dir));
  }
  return outcome;
}

}  // namespace

AttemptSpec AttemptOfPhase(const AttemptSpec& whole, size_t phase) {
  const auto folder = [&](size_t of) { return PhaseFolder(whole.job, of, whole.run_dir); };
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

Result<AttemptOutcome> RunPhase(Env& env, const AttemptSpec& whole, size_t phase,
                                Reporter& reporter, engine::Store& store) {
  AttemptSpec attempt = AttemptOfPhase(whole, phase);
  if (whole.job.phases.empty()) return RunAttempt(env, attempt, reporter, store);
  // The plan may have chosen what the job leaves open.
  WEFT_RETURN_IF_ERROR(
      CheckPhaseCompatibility(whole.job, phase, JobAsPlanned(attempt.job, attempt.plan)));
  if (whole.rank == 0) reporter.Report(EventMessage{"info", PhaseTitle(whole.job, phase)});
  if (const PhaseSearchSpec& search = whole.job.phases[phase].search; search.steps > 0) {
    WEFT_ASSIGN_OR_RETURN(AttemptOutcome searched, Search(env, attempt, search, reporter, store));
    if (!searched.choice) return searched;
    attempt = AttemptAfterSearch(attempt, *searched.choice);
  }
  // One that cannot be read is reported before the phase is trained.
  std::vector<PhaseSummary> phases;
  if (whole.rank == 0) {
    WEFT_ASSIGN_OR_RETURN(phases, EarlierPhases(env, whole, phase, reporter));
  }
  WEFT_ASSIGN_OR_RETURN(AttemptOutcome outcome, RunAttempt(env, attempt, reporter, store));
  if (!outcome.summary || whole.rank != 0) return outcome;
  phases.push_back(SummaryOf(PhaseTitle(whole.job, phase), *outcome.summary));
  outcome.summary->phases = std::move(phases);
  WEFT_RETURN_IF_ERROR(
      WriteFileAtomic(env, SummaryPath(attempt.run_dir), ToJson(*outcome.summary).dump(2) + "\n"));
  WEFT_RETURN_IF_ERROR(Failpoint("trainer.after_phase"));
  return outcome;
}

Result<AttemptOutcome> RunPhases(Env& env, const AttemptSpec& whole, const std::vector<Plan>& plans,
                                 const std::function<void(size_t)>& begin, Reporter& reporter,
                                 engine::Store& store) {
  AttemptSpec planned = whole;
  for (size_t i = 0; i + 1 < plans.size(); ++i) {
    planned.plan = plans[i];
    const AttemptSpec attempt = AttemptOfPhase(planned, i);
    WEFT_ASSIGN_OR_RETURN(const std::optional<RunSummary> summary,
                          ReadSummary(env, attempt.run_dir));
    if (summary) {
      WEFT_RETURN_IF_ERROR(CheckSamePhase(env, attempt, whole.job.phases[i].search, *summary));
      continue;
    }
    begin(i);
    WEFT_ASSIGN_OR_RETURN(AttemptOutcome outcome, RunPhase(env, planned, i, reporter, store));
    if (!outcome.summary) return outcome;
  }
  begin(plans.size() - 1);
  planned.plan = plans.back();
  return RunPhase(env, planned, plans.size() - 1, reporter, store);
}

}  // namespace weft::trainer
