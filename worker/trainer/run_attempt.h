#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "common/env.h"
#include "common/spec/attempt_spec.h"
#include "common/status.h"
#include "worker/engine/comm/store.h"
#include "worker/trainer/reporter.h"
#include "worker/trainer/size_search.h"
#include "worker/trainer/training_data.h"

namespace weft::trainer {

/// How an attempt ended well.
struct AttemptOutcome {
  int64_t step = 0;             ///< Steps done.
  std::string checkpoint_path;  ///< Of that step, on rank 0; empty when it could not be saved.
  std::optional<RunSummary> summary;  ///< Set when the training is complete, unset when stopped.
  std::optional<SizeChoice> choice = {};  ///< Set when the search that was asked for is complete.
};

/// Runs this rank's share of an attempt from start to end: data, model, peers, resume, training,
/// evaluation, checkpoints, `loss.jsonl`, and at the end `summary.json`. The caller sends the last
/// message (finished, stopped or failed). `store` brings the ranks together; one rank needs none of
/// it. Errors: kInvalid, the job or its data are wrong and a retry cannot help; kConflict, a newer
/// attempt has taken over; kUnavailable, a peer is lost; others as they come. All but kInvalid may
/// be retried. With `search`, which has steps, the attempt ends after these: they train an elastic
/// network, and one of its sizes is chosen.
Result<AttemptOutcome> RunAttempt(Env& env, const AttemptSpec& spec, Reporter& reporter,
                                  engine::Store& store, const PhaseSearchSpec& search = {});

/// The same on data that is already open.
Result<AttemptOutcome> RunAttemptOn(Env& env, const AttemptSpec& spec, TrainingData data,
                                    Reporter& reporter, engine::Store& store,
                                    const PhaseSearchSpec& search = {});

/// The error of an attempt that makes numbers that are not finite; `what` says which and when.
Status NumericsError(const std::string& what);

/// The error of a rank whose computations, done twice, had other bits; `what` says where and when.
Status SilentCorruptionError(const std::string& what);

}  // namespace weft::trainer
