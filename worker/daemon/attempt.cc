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
#include "common/spec/spec_json.h"
#include "proto/convert.h"
#include "worker/daemon/attempt_rank.h"
#include "worker/daemon/machine.h"
#include "worker/daemon/process_scan.h"
#include "worker/daemon/snapshot_folder.h"

namespace weft::daemon {
namespace asio = boost::asio;

namespace {

using std::chrono::milliseconds;

/// After the first failure the others are given so long to show that it was theirs.
constexpr milliseconds kVerdictDelay{150};

/// Ranks that were killed must be gone after this time; otherwise it is tried again.
constexpr milliseconds kKillPatience{2000};

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
  constexpr const char* kHint = "--data-root of this weft-worker";
  WEFT_RETURN_IF_ERROR(CheckPaths(job_, settings_.data_roots, kHint));
  if (const std::string& folder = start_.plan().offload_directory(); !folder.empty()) {
    WEFT_RETURN_IF_ERROR(
        CheckPath({"plan.offload_directory", folder}, settings_.data_roots, kHint));
  }
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
  spec.data_roots = settings_.data_roots;
  spec.mean_seconds_between_failures = start_.mean_seconds_between_failures();
  spec.membership = start_.membership();
  spec.joins = start_.joins();
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

bool Attempt::HasFirstRank() const {
  return !ranks_.empty() && ranks_.front()->index == first_rank_;
}

void Attempt::SetMembership(const v1::Membership& membership) {
  if (over_ || membership.number() <= membership_.number()) return;
  membership_ = membership;
  const bool had_first = HasFirstRank();
  if (membership.ranks_size() > 0) first_rank_ = membership.ranks(0);
  if (HasFirstRank()) {
    if (!had_first) metrics_.GainRankZero(job_id(), epoch(), start_.plan());
    metrics_.SetWorldSize(job_id(), membership.ranks_size());
  }
  const trainer::MembershipMessage message{membership.number(),
                                           {membership.ranks().begin(), membership.ranks().end()},
                                           {membership.gone().begin(), membership.gone().end()}};
  for (auto& rank : ranks_) rank->process->SendControl(ToLine(message));
}

void Attempt::Profile(const v1::ProfileAttempt& request) {
  if (over_ || failing_ || killed_ || !HasFirstRank() || !training_) {
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
  report.set_first_rank(first_rank());
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
    failures.push_back({rank->index, rank->failed, rank->wait_status});
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
  running.set_first_rank(first_rank());
  const bool paced = std::any_of(ranks_.begin(), ranks_.end(),
                                 [](const auto& rank) { return rank->busy_seconds > 0; });
  for (const auto& rank : ranks_) {
    // One that has ended waited, too.
    running.set_data_wait_seconds(std::max(running.data_wait_seconds(), rank->data_wait_seconds));
    if (rank->ended) continue;
    running.add_ranks(rank->index);
    if (paced) running.add_rank_busy_seconds(rank->busy_seconds);
  }
  running.set_checkpoint_seconds(checkpoint_seconds_);
  running.set_evaluation_seconds(evaluation_seconds_);
  running.set_membership(membership_.number());
  *running.mutable_progress() = progress_.message();
  AddActivity(running);
  return running;
}

void Attempt::AddActivity(v1::RunningAttempt& running) {
  const std::chrono::nanoseconds now = clock_.Monotonic();
  std::string states;
  const Rank* liveliest = nullptr;
  double longest_step = 0;
  for (const auto& rank : ranks_) {
    if (rank->ended) continue;
    rank->pulse.Sample(rank->process->pid(), now);
    longest_step = std::max(longest_step, rank->steps.LongestSeconds());
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
    if (rank->pulse.activity() == "saving") {
      running.set_saved_bytes(running.saved_bytes() + rank->saved_bytes);
    }
    if (rank->pulse.activity() == "evaluating") running.set_evaluated_sequences(rank->sequences);
  }
  if (liveliest != nullptr) running.set_silent_seconds(liveliest->pulse.SilentSeconds(now));
  running.set_longest_step_seconds(longest_step);
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
