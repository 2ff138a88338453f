#include "worker/daemon/attempt.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <filesystem>
#include <span>
#include <utility>

#include "common/env.h"
#include "common/json.h"
#include "common/log.h"
#include "common/model/job_paths.h"
#include "common/model/precision.h"
#include "common/spec/attempt_spec.h"
#include "common/spec/phases.h"
#include "proto/convert.h"
#include "worker/daemon/machine.h"
#include "worker/daemon/process_scan.h"
#include "worker/daemon/rank_pulse.h"
#include "worker/daemon/snapshot_folder.h"

namespace weft::daemon {
namespace asio = boost::asio;

namespace {

using std::chrono::milliseconds;

/// After the first failure the others are given so long to show that it was theirs.
constexpr milliseconds kVerdictDelay{150};

/// Ranks that were killed must be gone after this time; otherwise it is tried again.
constexpr milliseconds kKillPatience{2000};

/// Of the newest step in the mean of steps lately: about the last ten count.
constexpr double kNewestStep = 0.1;

/// Steps in the loss curve in `folder` that earlier attempts left: 0 when there is none.
int64_t StepsDoneBefore(const std::string& folder) {
  constexpr uint64_t kTail = 4096;
  Env& env = Env::Posix();
  std::string path = JoinPath(folder, "loss.jsonl");
  Result<uint64_t> size = env.FileSize(path);
  if (!size.ok() || *size == 0) return 0;
  std::string tail(std::min(*size, kTail), '\0');
  if (!env.ReadAt(path, *size - tail.size(), std::as_writable_bytes(std::span(tail))).ok())
    return 0;
  size_t end = tail.rfind('\n');
  if (end == std::string::npos) return 0;
  size_t begin = end == 0 ? std::string::npos : tail.rfind('\n', end - 1);
  begin = begin == std::string::npos ? 0 : begin + 1;
  Result<Json> line = ParseJson(std::string_view(tail).substr(begin, end - begin));
  if (!line.ok() || !line->is_object() || !line->value("step", Json()).is_number_integer())
    return 0;
  return line->at("step").get<int64_t>();
}

/// Tokens of all phases up to the one that ended in `folder`, by its summary; 0 when there is none.
int64_t TokensUpTo(const std::string& folder) {
  const Result<std::string> text = ReadFile(Env::Posix(), JoinPath(folder, "summary.json"));
  if (!text.ok()) return 0;
  const Result<Json> summary = ParseJson(*text);
  if (!summary.ok() || !summary->is_object()) return 0;
  int64_t tokens = 0;
  for (const Json& phase : summary->value("phases", Json::array())) {
    const auto found = phase.find("tokens");
    if (found != phase.end() && found->is_number_integer()) tokens += found->get<int64_t>();
  }
  return tokens;
}

}  // namespace

struct Attempt::Rank {
  Rank(std::chrono::nanoseconds now, std::chrono::nanoseconds longest_spin)
      : pulse(now, longest_spin) {}

  int index = 0;
  RankPulse pulse;
  std::unique_ptr<RankProcess> process;
  bool ended = false;
  int wait_status = 0;           // set only when the rank ended before it was killed from here
  bool finished = false;         // said that it trained to the end
  bool stopped = false;          // said that it stopped and saved
  std::optional<Status> failed;  // said why it failed
  bool numerics = false;
  bool silent_corruption = false;
  bool in_failures = false;
  double busy_seconds = 0;  // mean of a step lately, without waiting for others; 0: none yet
};

Attempt::Attempt(asio::io_context& io, const Clock& clock, const AttemptSettings& settings,
                 v1::StartAttempt start, AttemptListener& listener, Metrics& metrics)
    : io_(io),
      clock_(clock),
      settings_(settings),
      start_(std::move(start)),
      listener_(listener),
      metrics_(metrics),
      timer_(io),
      ledger_(clock.Monotonic(), 0) {}

Attempt::~Attempt() {
  *alive_ = false;
}

std::vector<std::string> Attempt::Marker() const {
  return {settings_.owner, "WEFT_ATTEMPT=" + job_id() + ":" + std::to_string(epoch())};
}

Status Attempt::FindPhase() {
  WEFT_ASSIGN_OR_RETURN(job_, FromProto<JobSpec>(start_.spec()));
  WEFT_ASSIGN_OR_RETURN(const size_t phase, PhaseToRun(job_));
  ledger_ =
      TimeLedger(clock_.Monotonic(), StepsDoneBefore(PhaseFolder(job_, phase, start_.run_dir())));
  if (job_.phases.empty()) return OkStatus();
  place_ = PlaceOfPhase(job_, phase);
  if (phase > 0) place_.tokens_before = TokensUpTo(PhaseFolder(job_, phase - 1, start_.run_dir()));
  progress_ = ProgressRecord(place_);
  return OkStatus();
}

Status Attempt::CheckStart() const {
  if (start_.ranks().empty()) return InternalError("no rank to start");
  std::filesystem::path dir = start_.run_dir();
  if (!dir.is_absolute()) {
    return InvalidError("run folder '" + dir.string() + "' is not an absolute path");
  }
  WEFT_RETURN_IF_ERROR(CheckPaths(job_, settings_.data_roots, "--data-root of this weft-worker"));
  if (settings_.run_root.empty()) return OkStatus();
  if (IsBelow(dir, {settings_.run_root})) return OkStatus();
  return InvalidError("run folder '" + dir.string() + "' is not inside this worker's --run-root " +
                      settings_.run_root +
                      "; hint: give coordinator and workers the same --run-root");
}

void Attempt::Start() {
  WEFT_LOG_INFO << "starting " << start_.ranks_size() << " of " << start_.world_size()
                << " ranks of " << Name();
  oom_kills_before_ = OomKills();
  bool has_rank_zero =
      std::find(start_.ranks().begin(), start_.ranks().end(), 0) != start_.ranks().end();
  metrics_.BeginRun(job_id(), epoch(), start_.plan(), has_rank_zero);
  Status status = FindPhase();
  if (!status.ok()) return Abort(v1::SERVICE_FAULT, status.WithContext("read the job").message());
  status = CheckStart();
  if (status.code() == StatusCode::kInvalid) return Abort(v1::USER_ERROR, status.message());
  for (int i = 0; status.ok() && i < start_.ranks_size(); ++i) status = StartRank(start_.ranks(i));
  if (!status.ok()) return Abort(v1::SERVICE_FAULT, status.WithContext("start ranks").message());
  listener_.OnReport(NewReport(v1::ATTEMPT_STARTED));
}

Status Attempt::StartRank(int index) {
  AttemptSpec spec;
  spec.job_id = job_id();
  spec.epoch = epoch();
  spec.rank = index;
  spec.world_size = start_.world_size();
  spec.host = settings_.host;
  spec.run_dir = start_.run_dir();
  spec.cache_dir = settings_.cache_dir;
  spec.mean_seconds_between_failures = start_.mean_seconds_between_failures();
  if (job_.checkpoint.peer_every_steps > 0 && !settings_.memory_dir.empty()) {
    if (Status made = MakeSnapshotFolder(settings_.memory_dir); made.ok()) {
      spec.memory_dir = settings_.memory_dir;
    } else {
      WEFT_LOG_WARNING << Name() << ": " << made.message();
    }
  }
  spec.job = job_;
  WEFT_ASSIGN_OR_RETURN(spec.plan, FromProto<Plan>(start_.plan()));
  std::string spec_path = JoinPath(settings_.spec_dir, job_id() + "-" + std::to_string(epoch()) +
                                                           "-" + std::to_string(index) + ".json");
  WEFT_RETURN_IF_ERROR(WriteFileAtomic(Env::Posix(), spec_path, ToJson(spec).dump(2) + "\n"));
  spec_paths_.push_back(spec_path);

  auto rank = std::make_unique<Rank>(clock_.Monotonic(), settings_.longest_spin);
  rank->index = index;
  RankCommand command;
  command.arguments = {settings_.trainer, "--spec", spec_path, "--control-fd",
                       std::to_string(command.control_fd)};
  command.environment = Marker();
  WEFT_ASSIGN_OR_RETURN(auto device, DeviceEnvironment(index));
  command.environment.insert(command.environment.end(), device.begin(), device.end());
  command.group = ranks_.empty() ? 0 : ranks_.front()->process->pid();
  auto process =
      RankProcess::Start(io_, command,
                         {[this, index](bool is_stderr, std::string line) {
                            AddLogLine(index, is_stderr, std::move(line));
                          },
                          [this, r = rank.get()](const std::string& line) { OnControl(*r, line); },
                          [this, r = rank.get()](int wait_status) { OnRankEnd(*r, wait_status); }});
  if (!process.ok()) return process.status();
  rank->process = std::move(*process);
  ranks_.push_back(std::move(rank));
  return OkStatus();
}

Result<std::vector<std::string>> Attempt::DeviceEnvironment(int rank) const {
  const v1::Plan& plan = start_.plan();
  if (plan.device() != "cuda") return std::vector<std::string>();
  if (rank < 0 || rank >= plan.rank_devices_size()) {
    return InvalidError("the plan gives rank " + std::to_string(rank) + " no GPU");
  }
  auto device = settings_.devices.find(plan.rank_devices(rank));
  if (device == settings_.devices.end()) {
    return InvalidError("the plan puts rank " + std::to_string(rank) + " on GPU " +
                        std::to_string(plan.rank_devices(rank)) +
                        ", which this worker does not offer");
  }
  return std::vector<std::string>{"CUDA_VISIBLE_DEVICES=" + device->second,
                                  "CUDA_DEVICE_ORDER=PCI_BUS_ID"};
}

void Attempt::OnDevice(const DeviceEvent& event) {
  if (over_ || start_.plan().device() != "cuda") return;
  std::string text = "GPU " + std::to_string(event.index) + ": " + event.text;
  bool any = false;
  for (int rank : start_.ranks()) {
    if (rank >= start_.plan().rank_devices_size()) continue;
    if (start_.plan().rank_devices(rank) != event.index) continue;
    any = true;
    AddLogLine(rank, true, "[weft-worker] " + text);
  }
  if (!any || !event.broken) return;
  Abort(v1::DEVICE_FAILED, text + "; no rank starts there until the worker is started anew");
}

void Attempt::AddLogLine(int rank, bool is_stderr, std::string text) {
  v1::LogLine line;
  line.set_epoch(epoch());
  line.set_rank(rank);
  line.set_is_stderr(is_stderr);
  line.set_time(clock_.UnixSeconds());
  line.set_text(std::move(text));
  listener_.OnLogLine(*this, std::move(line));
}

void Attempt::Stop(bool graceful) {
  if (over_ || aborted_) return;
  if (graceful && !failing_ && !killed_) {
    for (auto& rank : ranks_) rank->process->SendControl(ToLine(trainer::StopMessage{}));
    return;
  }
  KillRanks();
  FinishIfAllEnded();
}

void Attempt::Abort(v1::Reason reason, const std::string& message) {
  if (over_) return;
  if (!aborted_) aborted_ = {reason, message};
  KillRanks();
  FinishIfAllEnded();
}

void Attempt::Profile(const v1::ProfileAttempt& request) {
  const bool has_rank_zero = !ranks_.empty() && ranks_.front()->index == 0;
  if (over_ || failing_ || killed_ || !has_rank_zero || !training_) {
    return AnswerProfile(request.request_id(), "its ranks do not train yet, or no more", "");
  }
  if (profile_request_) {
    return AnswerProfile(request.request_id(), "it is being recorded already", "");
  }
  profile_request_ = request.request_id();
  ranks_.front()->process->SendControl(ToLine(trainer::ProfileMessage{request.steps()}));
}

void Attempt::AnswerProfile(int64_t request_id, const std::string& error,
                            const std::string& report_json) {
  v1::ProfileReply reply;
  reply.set_request_id(request_id);
  reply.set_error(error);
  reply.set_report_json(report_json);
  listener_.OnProfile(std::move(reply));
}

void Attempt::ReapChildren() {
  if (over_) return;
  for (auto& rank : ranks_) rank->process->Reap();
}

// ------------------------------------------------------------------------- what ranks say

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
  if (!started.resumed_from.empty()) {
    resume_step_ = place_.steps_before + started.step;
    WEFT_LOG_INFO << Name() << ": rank " << rank.index << " resumes at step " << started.step;
  }
}

void Attempt::On(Rank& rank, const trainer::ProgressMessage& progress) {
  rank.pulse.SetActivity("training");
  longest_step_seconds_ = std::max(longest_step_seconds_, progress.step_seconds);
  const trainer::PhaseTimes& p = progress.phases;
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
  if (&rank != ranks_.front().get()) return;
  const auto steps = static_cast<double>(progress.steps);
  checkpoint_seconds_ += steps * p.checkpoint_stall;
  evaluation_seconds_ += steps * p.evaluation;
  progress_.Take(progress);
  progress_.SetUtilization(Utilization());
  ledger_.OnStep(clock_.Monotonic(), progress.step,
                 std::chrono::duration_cast<std::chrono::nanoseconds>(
                     std::chrono::duration<double>(progress.step_seconds)));
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
  if (&rank != ranks_.front().get()) return;
  saving_since_.reset();
  if (activity.activity == "saving") saving_since_ = clock_.Monotonic();
}

/// The save with which an attempt ends is in no message of a step.
void Attempt::EndSave(const Rank& rank) {
  if (&rank != ranks_.front().get() || !saving_since_) return;
  checkpoint_seconds_ += std::chrono::duration<double>(clock_.Monotonic() - *saving_since_).count();
  saving_since_.reset();
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
  if (rank.index == 0) summary_json_ = ToJson(finished.summary).dump();
}

void Attempt::On(Rank& rank, const trainer::StoppedMessage& stopped) {
  rank.stopped = true;
  EndSave(rank);
  WEFT_LOG_INFO << Name() << ": rank " << rank.index << " stopped at step " << stopped.step;
}

void Attempt::On(Rank& rank, const trainer::FailedMessage& failed) {
  rank.failed = trainer::ToStatus(failed);
  rank.numerics = failed.numerics;
  rank.silent_corruption = failed.silent_corruption;
  OnFailure(rank);
}

// --------------------------------------------------------------------------------- the end

void Attempt::OnRankEnd(Rank& rank, int wait_status) {
  rank.ended = true;
  bool success = wait_status == 0 && (rank.finished || rank.stopped);
  if (!killed_) {
    rank.wait_status = wait_status;
    if (!success) OnFailure(rank);
  }
  FinishIfAllEnded();
}

void Attempt::OnFailure(Rank& rank) {
  if (killed_ || std::exchange(rank.in_failures, true)) return;
  failures_.push_back(&rank);
  if (std::exchange(failing_, true)) return;
  timer_.expires_after(kVerdictDelay);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) KillRanks();
  });
}

void Attempt::KillRanks() {
  killed_ = true;
  for (auto& rank : ranks_) rank->process->Signal(SIGKILL);
}

void Attempt::FinishIfAllEnded() {
  bool all =
      std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->ended; });
  if (!all || std::exchange(finishing_, true)) return;
  timer_.cancel();
  // Later, as this may run inside a call of a rank or of the listener.
  asio::post(io_, [this, alive = alive_] {
    if (*alive) ReportEnd();
  });
}

void Attempt::ReportEnd() {
  // Something that a rank started may have outlived it.
  if (Status status = KillProcesses(Marker(), kKillPatience); !status.ok()) {
    WEFT_LOG_ERROR << Name() << ": " << status.message();
    timer_.expires_after(std::chrono::seconds(1));
    timer_.async_wait([this](const boost::system::error_code& error) {
      if (!error) ReportEnd();
    });
    return;
  }
  over_ = true;
  if (profile_request_) {
    AnswerProfile(*std::exchange(profile_request_, std::nullopt),
                  "the attempt ended before the steps were done", "");
  }
  for (const std::string& path : spec_paths_) {
    Status removed = Env::Posix().RemoveFile(path);
    if (!removed.ok()) {
      WEFT_LOG_WARNING << removed.message();
    }
  }
  LeaveSnapshotFolder(settings_.memory_dir);
  ledger_.Finish(clock_.Monotonic());
  metrics_.SetAccounted(job_id(), ledger_);
  metrics_.EndRun(job_id());
  v1::AttemptReport report = EndReport();
  WEFT_LOG_INFO << Name() << ": " << v1::AttemptState_Name(report.state())
                << (report.message().empty() ? "" : ": ") << report.message();
  listener_.OnReport(std::move(report));
}

v1::AttemptReport Attempt::NewReport(v1::AttemptState state) const {
  v1::AttemptReport report;
  report.set_job_id(job_id());
  report.set_epoch(epoch());
  report.set_state(state);
  return report;
}

v1::AttemptReport Attempt::EndReport() const {
  bool finished =
      !ranks_.empty() && std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) {
        return rank->finished && rank->wait_status == 0;
      });
  if (finished) {
    v1::AttemptReport report = NewReport(v1::ATTEMPT_FINISHED);
    report.set_summary_json(summary_json_);
    return report;
  }
  if (aborted_) {
    v1::AttemptReport report = NewReport(v1::ATTEMPT_FAILED);
    report.set_reason(aborted_->first);
    report.set_message(aborted_->second);
    return report;
  }
  if (failures_.empty()) return NewReport(v1::ATTEMPT_STOPPED);
  std::vector<RankFailure> failures;
  for (const Rank* rank : failures_) {
    failures.push_back(
        {rank->index, rank->failed, rank->wait_status, rank->numerics, rank->silent_corruption});
  }
  Verdict verdict = JudgeFailures(failures, OomKills() > oom_kills_before_);
  v1::AttemptReport report = NewReport(v1::ATTEMPT_FAILED);
  report.set_reason(verdict.reason);
  report.set_message(verdict.message);
  report.set_rank(verdict.rank);
  report.set_exit_status(verdict.exit_status);
  report.set_signal(verdict.signal);
  return report;
}

v1::RunningAttempt Attempt::Running() {
  v1::RunningAttempt running;
  running.set_job_id(job_id());
  running.set_epoch(epoch());
  const bool paced = std::any_of(ranks_.begin(), ranks_.end(),
                                 [](const auto& rank) { return rank->busy_seconds > 0; });
  for (const auto& rank : ranks_) {
    if (rank->ended) continue;
    running.add_ranks(rank->index);
    if (paced) running.add_rank_busy_seconds(rank->busy_seconds);
  }
  running.set_checkpoint_seconds(checkpoint_seconds_);
  running.set_evaluation_seconds(evaluation_seconds_);
  *running.mutable_progress() = progress_.message();
  AddActivity(running);
  return running;
}

void Attempt::AddActivity(v1::RunningAttempt& running) {
  const std::chrono::nanoseconds now = clock_.Monotonic();
  std::string states;
  const Rank* liveliest = nullptr;
  for (const auto& rank : ranks_) {
    if (rank->ended) continue;
    rank->pulse.Sample(rank->process->pid(), now);
    states += (states.empty() ? "rank " : ", rank ") + std::to_string(rank->index) + " " +
              rank->pulse.StateText();
    if (liveliest == nullptr ||
        rank->pulse.SilentSeconds(now) < liveliest->pulse.SilentSeconds(now)) {
      liveliest = rank.get();
    }
    // What may take long decides: the others wait for it.
    if (running.activity().empty() || running.activity() == "training") {
      running.set_activity(rank->pulse.activity());
    }
  }
  if (liveliest != nullptr) running.set_silent_seconds(liveliest->pulse.SilentSeconds(now));
  running.set_longest_step_seconds(longest_step_seconds_);
  running.set_rank_states(states);
}

std::string Attempt::Name() const {
  return job_id() + ", attempt " + std::to_string(epoch());
}

double Attempt::Utilization() const {
  const bool on_devices = start_.plan().device() == "cuda";
  auto units = static_cast<double>(start_.world_size());
  if (!on_devices) units *= static_cast<double>(start_.plan().threads_per_rank());
  double flops = start_.plan().prediction().model_flops_per_step();
  const PrecisionRecipe* precision = FindPrecision(start_.plan().precision());
  if (precision == nullptr) return 0;
  const auto& rates = on_devices ? settings_.flops_per_device : settings_.flops_per_core;
  auto peak = rates.find(std::string(GemmRateName(precision->products)));
  // Types that were not measured are multiplied as f32.
  if (peak == rates.end()) peak = rates.find(std::string(GemmRateName(DType::kF32)));
  if (peak == rates.end() || progress_.mean_step_seconds() <= 0) return 0;
  return flops / progress_.mean_step_seconds() / (peak->second * units);
}

}  // namespace weft::daemon
