#include "worker/trainer/run_attempt.h"

#include <utility>
#include <vector>

#include "common/formats/added_network.h"
#include "common/formats/huggingface.h"
#include "common/formats/imported_weights.h"
#include "common/formats/weight_files.h"
#include "common/memory_errors.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/trainer/attempt.h"

namespace weft::trainer {
namespace {

Status CheckPlan(const AttemptSpec& spec) {
  if (spec.joins) return OkStatus();  // as one more, whose number may be greater than theirs
  if (spec.rank < 0 || spec.rank >= spec.world_size ||
      spec.world_size != RankCount(spec.plan.mesh)) {
    return InvalidError("rank " + std::to_string(spec.rank) + " of " +
                        std::to_string(spec.world_size) + " does not fit a plan for " +
                        std::to_string(RankCount(spec.plan.mesh)) + " ranks");
  }
  return OkStatus();
}

/// Before the first step a thing that is not there was named by the user: a retry cannot help.
Status BeforeTraining(Status status) {
  if (status.code() != StatusCode::kNotFound) return status;
  return InvalidError(status.message());
}

/// Nor does it mend files of the user that are damaged. Those that the worker made itself from them
/// are made again.
Status OfImport(Status status) {
  if (status.code() != StatusCode::kNotFound) return OfGivenFiles(std::move(status));
  return InvalidError(status.message() + "; hint: put it back as it was, or correct the path");
}

/// Whether weights in folders of the user can be read: their headers. Preparing the data may take
/// hours, so it is found before. An added network comes from its folder in each attempt. What the
/// model starts from is not read by an attempt that resumes, or that goes on from another run; a
/// frozen network that a checkpoint leaves out is checked when it is read (ReadBase). Rank 0 looks;
/// other ranks read folders, too (an added network, and what the model starts from where they have
/// parts of their own), and tell of theirs when they do.
Status CheckWeights(Env& env, const AttemptSpec& spec) {
  if (spec.rank != 0 || spec.joins) return OkStatus();
  WEFT_RETURN_IF_ERROR(CheckAddedWeights(env, spec.job, /*missing_is_error=*/true));
  const bool grows = !spec.start.run_dir.empty();
  const bool may_have_snapshots = spec.epoch > 1 && spec.job.checkpoint.peer_every_steps > 0;
  if (grows || may_have_snapshots) return OkStatus();
  const Result<std::vector<engine::CheckpointInfo>> checkpoints =
      engine::ListCheckpoints(env, spec.run_dir);
  // Faults of the run folder are reported when it is opened.
  if (!checkpoints.ok() || !checkpoints->empty()) return OkStatus();
  return CheckStartWeights(env, spec.job, /*missing_is_error=*/true);
}

/// Once training runs, what the user gave has proved good.
Status WhileTraining(Status status) {
  if (status.code() != StatusCode::kNotFound && status.code() != StatusCode::kInvalid) {
    return status;
  }
  return InternalError(status.message());
}

}  // namespace

Result<AttemptOutcome> RunAttemptOn(Env& env, const AttemptSpec& spec, TrainingData data,
                                    Reporter& reporter, engine::Store& store,
                                    const PhaseSearchSpec& search) {
  WEFT_RETURN_IF_ERROR(CheckPlan(spec));
  return CatchExhaustion("training", [&]() -> Result<AttemptOutcome> {
    Attempt attempt(env, spec, std::move(data), reporter, store, search);
    Result<AttemptOutcome> outcome = CatchExhaustion("training", [&]() -> Result<AttemptOutcome> {
      const Result<bool> ready = attempt.Prepare();
      if (!ready.ok()) return BeforeTraining(ready.status());
      if (!*ready) return AttemptOutcome{};
      Result<AttemptOutcome> trained = attempt.Train();
      if (trained.ok()) return trained;
      // Permissions may have changed since the start.
      if (Status folder = attempt.CheckFolder(); folder.code() == StatusCode::kInvalid) {
        return folder;
      }
      return WhileTraining(trained.status());
    });
    if (!outcome.ok() && IsMemoryError(outcome.status())) attempt.LogMemory();
    return outcome;
  });
}

Result<AttemptOutcome> RunAttempt(Env& env, const AttemptSpec& spec, Reporter& reporter,
                                  engine::Store& store, const PhaseSearchSpec& search) {
  AttemptSpec resolved = spec;
  if (Status status = ResolveImportedModel(env, resolved.job); !status.ok()) {
    return OfImport(status);
  }
  WEFT_RETURN_IF_ERROR(ResolveAddedNetwork(env, resolved.job));
  WEFT_RETURN_IF_ERROR(CheckWeights(env, resolved));
  Result<TrainingData> data = CatchExhaustion(
      "opening the training data", [&] { return OpenTrainingData(env, resolved, search); });
  if (!data.ok()) return BeforeTraining(data.status());
  return RunAttemptOn(env, resolved, *std::move(data), reporter, store, search);
}

Status NumericsError(const std::string& what) {
  return {StatusCode::kInternal,
          "the training diverged: " + what +
              "; hint: lower optimizer.learning_rate or raise schedule.warmup_steps",
          FailureKind::kDiverged};
}

Status SilentCorruptionError(const std::string& what) {
  return {StatusCode::kInternal,
          "silent corruption: " + what +
              "; hint: take the machine out of service and test its processors and memory",
          FailureKind::kSilentCorruption};
}

}  // namespace weft::trainer
