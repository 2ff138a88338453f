#include "worker/daemon/agent.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <list>
#include <optional>
#include <set>
#include <vector>

#include "common/log.h"
#include "common/model/job_paths.h"
#include "worker/daemon/agent_share.h"
#include "worker/daemon/snapshot_folder.h"

namespace weft::daemon {
namespace asio = boost::asio;

namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

/// Lines in one LogBatch, and lines sent but not acknowledged, at most.
constexpr size_t kBatchLines = 256;
constexpr int64_t kWindowLines = 4096;

/// Log lines wait this long for company.
constexpr milliseconds kPumpDelay{20};

/// Checkpoint reports have no acknowledgement: the newest few are sent again after a reconnect.
constexpr size_t kKeptCheckpoints = 8;

/// Ended attempts are kept this long at most for a coordinator that stays away.
constexpr std::chrono::hours kKeepEnded{24};

/// Snapshots of jobs that have not been here for so long are deleted when another one starts.
constexpr std::chrono::hours kKeepSnapshots{1};

/// How long a drained worker waits for its last reports to be acknowledged.
constexpr std::chrono::seconds kFarewell{5};

bool IsTerminal(v1::AttemptState state) {
  return state == v1::ATTEMPT_FINISHED || state == v1::ATTEMPT_FAILED ||
         state == v1::ATTEMPT_STOPPED;
}

}  // namespace

Agent::Agent(asio::io_context& io, const Clock& clock, Settings settings, Metrics& metrics,
             std::function<void(Status)> on_done)
    : io_(io),
      clock_(clock),
      settings_(std::move(settings)),
      metrics_(metrics),
      on_done_(std::move(on_done)),
      backoff_(std::hash<std::string>()(settings_.incarnation)),
      lease_(clock),
      dial_timer_(io),
      heartbeat_timer_(io),
      lease_timer_(io),
      pump_timer_(io),
      drain_timer_(io),
      unsent_(settings_.unsent_path),
      link_measurement_(io, settings_.attempt.host,
                        [this](v1::LinkReply reply) { SendLinkReply(std::move(reply)); }),
      health_check_(io, settings_.check_program, settings_.profile,
                    [this](v1::HealthReply reply) { SendHealthReply(std::move(reply)); }) {
  // What the daemon before has ended does not start again.
  for (const UnsentAttempt& attempt : unsent_.attempts()) {
    int64_t& newest = newest_epoch_[attempt.running.job_id()];
    newest = std::max(newest, attempt.running.epoch());
  }
}

Agent::~Agent() {
  if (connection_ == nullptr) return;
  connection_->Cancel();
  connection_->WaitClosed();
}

void Agent::Start() {
  Dial();
}

// --------------------------------------------------------------------------------- commands

void Agent::OnStart(const v1::StartAttempt& start) {
  // Files are named after it.
  if (Status legal = CheckJobId(start.job_id()); !legal.ok()) return SendRefused(start, legal);
  Key key{start.job_id(), start.epoch()};
  // Delivered at least once, and perhaps late. A running attempt may get ranks here again, which
  // have greater numbers than those before.
  if (Placement* before = FindPlacement(key); before != nullptr) {
    const bool again =
        start.joins() && !start.ranks().empty() && start.ranks(0) > before->attempt.first_rank();
    if (!again) return;
    if (!before->attempt.over()) {
      before->next = start;
      return before->attempt.Stop(/*graceful=*/false);
    }
  }
  int64_t& newest = newest_epoch_[start.job_id()];
  if (start.epoch() < newest || (start.epoch() == newest && !start.joins())) {
    return SendStopped(start.job_id(), start.epoch(),
                       "epoch " + std::to_string(newest) + " came before this start");
  }
  // Told again after a reconnect.
  if (lease_.Expired()) return;
  if (draining_) {
    return SendStopped(start.job_id(), start.epoch(), "the worker is shutting down");
  }
  newest = start.epoch();
  std::set<std::string> running = {start.job_id()};
  for (const auto& [other, placement] : placements_) running.insert(other.first);
  ForgetOldSnapshots(settings_.attempt.memory_dir, running, kKeepSnapshots);
  link_measurement_.Stop("a job started on the worker");
  for (auto& [other, placement] : placements_) {
    if (other.first == start.job_id()) placement->attempt.Stop(/*graceful=*/false);
  }
  std::list<RankLog> logs_before;
  if (Placement* before = FindPlacement(key); before != nullptr) {
    logs_before = std::move(before->logs);
    placements_.erase(key);
  }
  auto placement = std::make_unique<Placement>(io_, clock_, settings_, start,
                                               static_cast<AttemptListener&>(*this), metrics_);
  Attempt& attempt = placement->attempt;
  placement->logs.splice(placement->logs.begin(), logs_before);
  placements_[key] = std::move(placement);
  std::string broken = BrokenUnder(start);
  if (broken.empty()) {
    attempt.Start();
  } else {
    attempt.Abort(v1::DEVICE_FAILED, broken);
  }
  if (registered_) ScheduleHeartbeat();
}

std::string Agent::BrokenUnder(const v1::StartAttempt& start) const {
  const v1::Plan& plan = start.plan();
  for (int rank : start.ranks()) {
    if (rank < 0 || rank >= plan.rank_devices_size()) continue;
    for (const DeviceSpec& device : settings_.profile.devices) {
      if (device.index == plan.rank_devices(rank) && !device.unusable.empty()) {
        return "GPU " + std::to_string(device.index) + ": " + device.unusable;
      }
    }
  }
  return "";
}

void Agent::OnDevice(const DeviceEvent& event) {
  WEFT_LOG_AT(event.broken ? LogLevel::kError : LogLevel::kWarning)
      << "GPU " << event.index << ": " << event.text;
  metrics_.devices().Count(event);
  if (event.broken) {
    for (DeviceSpec& device : settings_.profile.devices) {
      if (device.index == event.index && device.unusable.empty()) device.unusable = event.text;
    }
    if (registered_) SendHeartbeat();
  }
  for (auto& [key, placement] : placements_) placement->attempt.OnDevice(event);
}

void Agent::OnStop(const v1::StopAttempt& stop) {
  int64_t& newest = newest_epoch_[stop.job_id()];
  newest = std::max(newest, stop.epoch());
  Placement* placement = FindPlacement({stop.job_id(), stop.epoch()});
  if (placement == nullptr) {
    return SendStopped(stop.job_id(), stop.epoch(), "no rank of this attempt runs here");
  }
  placement->next.reset();
  placement->attempt.Stop(stop.graceful());
}

void Agent::OnMembership(const v1::Membership& membership) {
  Placement* placement = FindPlacement({membership.job_id(), membership.epoch()});
  if (placement != nullptr) placement->attempt.SetMembership(membership);
}

void Agent::OnProfileRequest(const v1::ProfileAttempt& request) {
  Placement* placement = FindPlacement({request.job_id(), request.epoch()});
  if (placement != nullptr) return placement->attempt.Profile(request);
  v1::ProfileReply reply;
  reply.set_request_id(request.request_id());
  reply.set_error("no rank of this attempt runs on the worker");
  OnProfile(std::move(reply));
}

void Agent::OnMeasureLink(const v1::MeasureLink& request) {
  const bool busy = std::any_of(placements_.begin(), placements_.end(),
                                [](const auto& entry) { return !entry.second->attempt.over(); });
  if (!busy && !draining_) return link_measurement_.Start(request);
  v1::LinkReply reply;
  reply.set_request_id(request.request_id());
  reply.set_error(busy ? "the worker runs ranks" : "the worker is shutting down");
  SendLinkReply(std::move(reply));
}

void Agent::OnCheckHealth(const v1::CheckHealth& request) {
  health_check_.Start(request);
}

void Agent::OnStoreReply(const v1::StoreReply& reply) {
  auto call = store_calls_.find(reply.request_id());
  if (call == store_calls_.end()) return;
  StoreAnswer answer = std::move(call->second.answer);
  // A coordinator that starts again has forgotten it, and other ranks may not have asked for it
  // yet.
  const v1::StoreRequest& request = call->second.request;
  Placement* placement = FindPlacement({request.job_id(), request.epoch()});
  if (request.has_set() && reply.error().empty() && placement != nullptr) {
    placement->set[request.set().key()] = request;
  }
  store_calls_.erase(call);
  answer(reply.error(), reply.value());
}

void Agent::OnLogAck(const v1::LogAck& ack) {
  Placement* placement = FindPlacement({ack.job_id(), ack.epoch()});
  if (placement == nullptr) return;
  for (RankLog& log : placement->logs) {
    if (log.first_rank != ack.first_rank()) continue;
    log.lines.Acknowledge(std::min(ack.sequence(), log.sent));
  }
  while (placement->logs.size() > 1 && placement->logs.front().lines.empty()) {
    placement->logs.pop_front();
  }
  Pump(*placement);
  FinishDrainIfDone();
}

void Agent::OnAttemptAck(const v1::AttemptAck& ack) {
  unsent_.Acknowledge(ack);
  Placement* placement = FindPlacement({ack.job_id(), ack.epoch()});
  if (placement == nullptr) return;
  // Reports are sent in order, so this answers all up to the one it names; none, when that is of
  // ranks that were here before.
  auto& reports = placement->reports;
  const auto sent_end = reports.begin() + static_cast<std::ptrdiff_t>(placement->reports_sent);
  const auto named = std::find_if(reports.begin(), sent_end,
                                  [&](const auto& report) { return Answers(ack, report); });
  if (named == sent_end) return;
  placement->reports_sent -= static_cast<size_t>(named + 1 - reports.begin());
  reports.erase(reports.begin(), named + 1);
  FinishDrainIfDone();
}

// --------------------------------------------------------------------- what attempts report

void Agent::OnReport(v1::AttemptReport report) {
  Placement* placement = FindPlacement({report.job_id(), report.epoch()});
  if (placement == nullptr) return;
  if (IsTerminal(report.state())) {
    placement->ended_at = clock_.Monotonic();
    metrics_.CountAttemptEnd(report.state() == v1::ATTEMPT_FINISHED ? "finished"
                             : report.state() == v1::ATTEMPT_FAILED ? "failed"
                                                                    : "stopped");
    std::erase_if(store_calls_, [&](const auto& entry) {
      return entry.second.request.job_id() == report.job_id() &&
             entry.second.request.epoch() == report.epoch();
    });
    placement->set.clear();
    if (placement->next) {
      // Not from a call of the attempt that ends with it. A stop may come before.
      boost::asio::post(io_, [this, key = Key{report.job_id(), report.epoch()}] {
        const Placement* over = FindPlacement(key);
        if (over != nullptr && over->next) OnStart(v1::StartAttempt(*over->next));
      });
    }
  }
  bool terminal = IsTerminal(report.state());
  placement->reports.push_back(std::move(report));
  // Reports carry no progress: its last state goes first.
  if (terminal && registered_) SendHeartbeat();
  Pump(*placement);
  // This daemon may not live until the coordinator is back.
  if (terminal && draining_ && !registered_) KeepUnsent();
  FinishDrainIfDone();
}

void Agent::OnLogLine(Attempt& attempt, v1::LogLine line) {
  Placement* placement = FindPlacement({attempt.job_id(), attempt.epoch()});
  if (placement == nullptr) return;
  placement->logs.back().lines.Append(std::move(line));
  SchedulePump();
}

void Agent::OnCheckpoint(v1::CheckpointReport report) {
  Placement* placement = FindPlacement({report.checkpoint().job_id(), report.checkpoint().epoch()});
  if (placement == nullptr) return;
  if (registered_) {
    v1::WorkerMessage message;
    *message.mutable_checkpoint() = report;
    connection_->Send(std::move(message));
  }
  placement->checkpoints.push_back(std::move(report));
  if (placement->checkpoints.size() > kKeptCheckpoints) placement->checkpoints.pop_front();
}

void Agent::OnProfile(v1::ProfileReply reply) {
  // After a reconnect nobody waits for it any more.
  if (!registered_) return;
  v1::WorkerMessage message;
  *message.mutable_profile() = std::move(reply);
  connection_->Send(std::move(message));
}

void Agent::OnStoreRequest(Attempt& /*attempt*/, v1::StoreRequest request, StoreAnswer answer) {
  request.set_request_id(next_store_call_++);
  if (registered_) {
    v1::WorkerMessage message;
    *message.mutable_store() = request;
    connection_->Send(std::move(message));
  }
  int64_t id = request.request_id();
  store_calls_[id] = {std::move(request), std::move(answer)};
}

void Agent::ReapChildren() {
  for (auto& [key, placement] : placements_) placement->attempt.ReapChildren();
}

// ---------------------------------------------------------------------------------- sending

Agent::Placement* Agent::FindPlacement(const Key& key) {
  auto it = placements_.find(key);
  return it == placements_.end() ? nullptr : it->second.get();
}

void Agent::Pump(Placement& placement) {
  if (!registered_) return;
  for (RankLog& log : placement.logs) PumpLog(placement.attempt, log);
  const bool logs_sent = std::all_of(placement.logs.begin(), placement.logs.end(),
                                     [](const auto& log) { return log.sent == log.lines.last(); });
  while (placement.reports_sent < placement.reports.size()) {
    const v1::AttemptReport& report = placement.reports[placement.reports_sent];
    // A job's log is complete before its end is known.
    if (IsTerminal(report.state()) && !logs_sent) break;
    v1::WorkerMessage message;
    *message.mutable_attempt() = report;
    connection_->Send(std::move(message));
    ++placement.reports_sent;
  }
}

void Agent::PumpLog(const Attempt& attempt, RankLog& log) {
  while (log.sent - log.lines.acknowledged() < kWindowLines) {
    std::vector<v1::LogLine> lines = log.lines.Read(log.sent, kBatchLines);
    if (lines.empty()) return;
    v1::WorkerMessage message;
    v1::LogBatch& batch = *message.mutable_logs();
    batch.set_job_id(attempt.job_id());
    batch.set_epoch(attempt.epoch());
    batch.set_first_rank(log.first_rank);
    batch.set_first_sequence(log.sent + 1);
    log.sent += static_cast<int64_t>(lines.size());
    for (v1::LogLine& line : lines) *batch.add_lines() = std::move(line);
    connection_->Send(std::move(message));
  }
}

void Agent::SendUnsent() {
  for (const UnsentAttempt& attempt : unsent_.attempts()) {
    for (const v1::CheckpointReport& checkpoint : attempt.checkpoints) {
      v1::WorkerMessage message;
      *message.mutable_checkpoint() = checkpoint;
      connection_->Send(std::move(message));
    }
    for (const v1::AttemptReport& report : attempt.reports) {
      v1::WorkerMessage message;
      *message.mutable_attempt() = report;
      connection_->Send(std::move(message));
    }
  }
}

void Agent::KeepUnsent() {
  std::vector<UnsentAttempt> attempts;
  for (const auto& [key, placement] : placements_) {
    if (!placement->attempt.over() || placement->reports.empty()) continue;
    attempts.push_back({placement->attempt.Running(),
                        {placement->checkpoints.begin(), placement->checkpoints.end()},
                        {placement->reports.begin(), placement->reports.end()}});
  }
  unsent_.Keep(std::move(attempts));
}

void Agent::SchedulePump() {
  if (pump_scheduled_) return;
  pump_scheduled_ = true;
  pump_timer_.expires_after(kPumpDelay);
  pump_timer_.async_wait([this](const boost::system::error_code& error) {
    pump_scheduled_ = false;
    if (error) return;
    for (auto& [key, placement] : placements_) Pump(*placement);
  });
}

void Agent::SendLinkReply(v1::LinkReply reply) {
  if (!registered_) return;
  v1::WorkerMessage message;
  *message.mutable_link() = std::move(reply);
  connection_->Send(std::move(message));
}

void Agent::SendHealthReply(v1::HealthReply reply) {
  if (!reply.error().empty()) {
    WEFT_LOG_ERROR << "the check of this machine: " << reply.error();
  }
  if (!registered_) return;
  v1::WorkerMessage message;
  *message.mutable_health() = std::move(reply);
  connection_->Send(std::move(message));
}

void Agent::SendRefused(const v1::StartAttempt& start, const Status& why) {
  v1::WorkerMessage out;
  v1::AttemptReport& report = *out.mutable_attempt();
  report.set_job_id(start.job_id());
  report.set_epoch(start.epoch());
  if (!start.ranks().empty()) report.set_first_rank(start.ranks(0));
  report.set_state(v1::ATTEMPT_FAILED);
  report.set_reason(v1::USER_ERROR);
  report.set_message(why.message());
  connection_->Send(std::move(out));
}

void Agent::SendStopped(const std::string& job_id, int64_t epoch, const std::string& message) {
  v1::WorkerMessage out;
  v1::AttemptReport& report = *out.mutable_attempt();
  report.set_job_id(job_id);
  report.set_epoch(epoch);
  report.set_state(v1::ATTEMPT_STOPPED);
  report.set_message(message);
  connection_->Send(std::move(out));
}

void Agent::ForgetOldShares() {
  std::erase_if(placements_, [&](const auto& entry) {
    const Placement& placement = *entry.second;
    return placement.Settled() ||
           (placement.attempt.over() && clock_.Monotonic() - placement.ended_at > kKeepEnded);
  });
}

void Agent::Drain(std::chrono::duration<double> limit) {
  bool first = !draining_;
  draining_ = true;
  link_measurement_.Stop("the worker is shutting down");
  WEFT_LOG_INFO << (first ? "draining: ranks save and stop" : "killing the ranks");
  if (registered_) SendHeartbeat();
  for (auto& [key, placement] : placements_) {
    // The others go on without these ranks, which the coordinator lets go at their next outer step.
    if (first && placement->attempt.elastic()) continue;
    placement->attempt.Stop(/*graceful=*/first);
  }
  drain_timer_.expires_after(duration_cast<nanoseconds>(limit));
  drain_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    WEFT_LOG_WARNING << "ranks did not stop in time; killing them";
    for (auto& [key, placement] : placements_) placement->attempt.Stop(/*graceful=*/false);
  });
  FinishDrainIfDone();
}

void Agent::FinishDrainIfDone() {
  bool over = std::all_of(placements_.begin(), placements_.end(),
                          [](const auto& entry) { return entry.second->attempt.over(); });
  if (!draining_ || !over || leaving_) return;
  bool settled = std::all_of(placements_.begin(), placements_.end(),
                             [](const auto& entry) { return entry.second->Settled(); });
  if (settled) return Leave();
  if (std::exchange(farewell_, true)) return;
  drain_timer_.expires_after(kFarewell);
  drain_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) Leave();
  });
}

void Agent::Leave() {
  KeepUnsent();
  if (connection_ == nullptr) return on_done_(OkStatus());
  if (std::exchange(leaving_, true)) return connection_->Cancel();
  connection_->Finish();
  drain_timer_.expires_after(std::chrono::seconds(1));
  drain_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error && connection_ != nullptr) connection_->Cancel();
  });
}

}  // namespace weft::daemon
