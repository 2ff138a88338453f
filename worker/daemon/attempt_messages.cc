// What ranks say, and what follows from it.
#include <algorithm>
#include <string>
#include <utility>

#include "common/clock.h"
#include "common/log.h"
#include "common/spec/spec_json.h"
#include "proto/convert.h"
#include "worker/daemon/attempt_rank.h"

namespace weft::daemon {
namespace {

/// The share of the newest step in the mean of recent steps: about the last ten count.
constexpr double kNewestStep = 0.1;

}  // namespace

void Attempt::OnControl(Rank& rank, const std::string& line) {
  rank.pulse.OnMessage(clock_.Monotonic());
  Result<trainer::RankMessage> message = trainer::ParseRankMessage(line);
  if (!message.ok()) {
    rank.failed = InternalError("rank " + std::to_string(rank.index) +
                                " broke the control protocol: " + message.status().message());
    return OnFailure(rank);
  }
  std::visit([&](const auto& body) { On(rank, body); }, *message);
}

void Attempt::On(Rank& rank, const trainer::HelloMessage& hello) {
  WEFT_LOG_DEBUG << Name() << ": rank " << rank.index << " is pid " << hello.pid;
}

void Attempt::On(Rank& rank, const trainer::StartedMessage& started) {
  rank.pulse.SetActivity("training");  // The first step may hang, too.
  if (&rank == ranks_.front().get()) progress_.Take(started);
  if (!started.resumed_from.empty()) {
    resume_step_ = place_.steps_before + started.step;
    WEFT_LOG_INFO << Name() << ": rank " << rank.index << " resumes at step " << started.step;
  }
}

void Attempt::On(Rank& rank, const trainer::ProgressMessage& progress) {
  rank.pulse.SetActivity("training");
  const trainer::PhaseTimes& p = progress.phases;
  // Before this one the state was loaded.
  if (!progress.rolled_back) {
    rank.steps.Add(progress.step_seconds - p.checkpoint_stall - p.evaluation);
  }
  metrics_.ObserveStep(job_id(), rank.index, progress.step_seconds,
                       {{"data", p.data},
                        {"forward", p.forward},
                        {"backward", p.backward},
                        {"comm_exposed", p.communication_exposed},
                        {"optimizer", p.optimizer},
                        {"checkpoint_stall", p.checkpoint_stall},
                        {"eval", p.evaluation}});
  const double busy = std::max(
      0.0, progress.step_seconds - p.communication_exposed - p.checkpoint_stall - p.evaluation);
  rank.busy_seconds += (rank.busy_seconds == 0 ? 1 : kNewestStep) * (busy - rank.busy_seconds);
  metrics_.SetMemory(job_id(), rank.index, progress.memory_peak, progress.memory_step);
  metrics_.ObserveUse(job_id(), rank.index, progress.collectives, progress.tiers);
  const auto steps = static_cast<double>(progress.steps);
  rank.data_wait_seconds += steps * p.data;
  if (&rank != ranks_.front().get()) return;
  checkpoint_seconds_ += steps * p.checkpoint_stall;
  evaluation_seconds_ += steps * p.evaluation;
  progress_.Take(progress);
  progress_.SetUtilization(Utilization());
  // What steps waited for is a stall, as all between them.
  const double worked = progress.step_seconds - p.data - p.checkpoint_stall - p.evaluation;
  ledger_.OnStep(clock_.Monotonic(), progress.step, FromSeconds(std::max(0.0, worked)));
  metrics_.SetAccounted(job_id(), ledger_);
  metrics_.SetProgress(job_id(), progress_.message());
  metrics_.ObserveNumerics(job_id(), progress);
  metrics_.ObserveTechniques(job_id(), progress.technique_metrics);
  if (!std::exchange(training_, true)) listener_.OnReport(NewReport(v1::ATTEMPT_TRAINING));
}

void Attempt::On(Rank& /*rank*/, const trainer::EvaluationMessage& evaluation) {
  progress_.Take(evaluation);
  // Before the first step there is none to count.
  if (training_) metrics_.SetProgress(job_id(), progress_.message());
  metrics_.ObserveTechniques(job_id(), evaluation.technique_metrics);
}

void Attempt::On(Rank& rank, const trainer::CheckpointMessage& message) {
  if (message.state == "failed") {
    metrics_.CountFailedCheckpoint(job_id());
    return AddLogLine(rank.index, true,
                      "[weft-worker] checkpoint of step " + std::to_string(message.step) +
                          " failed: " + message.error);
  }
  v1::CheckpointReport report;
  if (resume_step_) report.set_resume_step(*resume_step_);
  v1::Checkpoint& checkpoint = *report.mutable_checkpoint();
  checkpoint.set_job_id(job_id());
  checkpoint.set_epoch(epoch());
  checkpoint.set_step(place_.steps_before + message.step);
  checkpoint.set_path(message.path);
  checkpoint.set_bytes(message.bytes);
  checkpoint.set_verified(message.state == "verified");
  checkpoint.set_created_at(clock_.UnixSeconds());
  if (checkpoint.verified()) {
    progress_.Take(message);
    metrics_.ObserveCheckpoint(job_id(), checkpoint,
                               {{"snapshot", message.snapshot_seconds},
                                {"write", message.write_seconds},
                                {"verify", message.verify_seconds}});
  }
  listener_.OnCheckpoint(std::move(report));
}

void Attempt::On(Rank& rank, const trainer::EventMessage& event) {
  AddLogLine(rank.index, true, event.level + ": " + event.text);
}

void Attempt::On(Rank& rank, const trainer::ActivityMessage& activity) {
  rank.pulse.SetActivity(activity.activity);
  rank.saved_bytes = activity.saved_bytes;
  rank.sequences = activity.sequences;
  if (&rank != ranks_.front().get()) return;
  saving_since_.reset();
  if (activity.activity == "saving") saving_since_ = clock_.Monotonic();
}

/// The save with which an attempt ends is in no message of a step.
void Attempt::EndSave(const Rank& rank) {
  if (&rank != ranks_.front().get() || !saving_since_) return;
  checkpoint_seconds_ += ToSeconds(clock_.Monotonic() - *saving_since_);
  saving_since_.reset();
}

void Attempt::On(Rank& /*rank*/, const trainer::AliveMessage& /*alive*/) {
  // It is a message, and that is all it says.
}

void Attempt::On(Rank& /*rank*/, const trainer::ProfiledMessage& profiled) {
  if (!profile_request_) return;
  const int64_t request = *std::exchange(profile_request_, std::nullopt);
  AnswerProfile(request, profiled.error,
                profiled.error.empty() ? ToJson(profiled.report).dump() : "");
}

void Attempt::On(Rank& rank, const trainer::StoreSetMessage& set) {
  Result<std::string> value = trainer::FromHex(set.value_hex);
  if (!value.ok()) return AnswerStore(rank, set.request_id, value.status().message(), "");
  v1::StoreRequest request;
  request.mutable_set()->set_key(set.key);
  request.mutable_set()->set_value(std::move(*value));
  AskStore(rank, set.request_id, std::move(request));
}

void Attempt::On(Rank& rank, const trainer::StoreGetMessage& get) {
  v1::StoreRequest request;
  request.mutable_get()->set_key(get.key);
  request.mutable_get()->set_timeout_seconds(get.timeout_seconds);
  AskStore(rank, get.request_id, std::move(request));
}

void Attempt::AskStore(Rank& rank, int64_t id, v1::StoreRequest request) {
  request.set_job_id(job_id());
  request.set_epoch(epoch());
  listener_.OnStoreRequest(
      *this, std::move(request),
      [this, &rank, id, alive = alive_](const std::string& error, const std::string& value) {
        if (*alive && !over_) AnswerStore(rank, id, error, value);
      });
}

void Attempt::AnswerStore(Rank& rank, int64_t id, const std::string& error,
                          const std::string& value) {
  rank.process->SendControl(ToLine(trainer::StoreReplyMessage{id, error, trainer::ToHex(value)}));
}

void Attempt::On(Rank& rank, const trainer::FinishedMessage& finished) {
  rank.finished = true;
  EndSave(rank);
  if (rank.index == first_rank_) summary_json_ = ToJson(finished.summary).dump();
}

void Attempt::On(Rank& rank, const trainer::StoppedMessage& stopped) {
  rank.stopped = true;
  EndSave(rank);
  WEFT_LOG_INFO << Name() << ": rank " << rank.index << " stopped at step " << stopped.step;
}

void Attempt::On(Rank& rank, const trainer::FailedMessage& failed) {
  rank.failed = trainer::ToStatus(failed);
  OnFailure(rank);
}

}  // namespace weft::daemon
