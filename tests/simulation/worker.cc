#include "tests/simulation/worker.h"

#include <algorithm>
#include <utility>

#include "common/version.h"

namespace weft::simulation {

using coordinator::AttemptKey;
using coordinator::CheckpointRecord;
using coordinator::PlacementEvent;
using coordinator::PlacementReport;
using coordinator::Reason;
using coordinator::RunningAttempt;
using coordinator::Service;
using coordinator::StartOrder;
using coordinator::WorkerHello;
using coordinator::WorkerLink;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

// As in worker/daemon/agent.cc and agent_connection.cc.
constexpr seconds kRegisterPatience{10};
constexpr milliseconds kProgressEvery{500};
constexpr seconds kFarewell{5};
constexpr size_t kKeptCheckpoints = 8;

bool IsEnd(PlacementEvent event) {
  return event != PlacementEvent::kStarted && event != PlacementEvent::kTraining;
}

}  // namespace

Worker::Worker(Timeline& timeline, Coordinator& coordinator, Rules& rules, Ranks& ranks,
               std::string id, int64_t gpus)
    : timeline_(timeline),
      coordinator_(coordinator),
      rules_(rules),
      ranks_(ranks),
      id_(std::move(id)),
      gpus_(gpus) {}

void Worker::Timer(Duration delay, std::function<void()> event) {
  timeline_.After(delay, [this, boot = boot_, event = std::move(event)] {
    if (!up_ || boot != boot_) return;
    if (timeline_.now() <= frozen_until_) {
      return Timer(frozen_until_ - timeline_.now() + Duration(1), event);
    }
    event();
  });
}

void Worker::Boot() {
  if (up_) return;
  ++boot_;
  up_ = true;
  draining_ = registered_ = false;
  timeline_.Note(id_ + " boots");
  lease_ = std::make_unique<daemon::Lease>(timeline_.clock());
  backoff_ = std::make_unique<daemon::Backoff>(static_cast<uint64_t>(boot_));
  patience_ = heartbeat_every_ = Duration(0);
  heartbeats_sent_.clear();
  shares_.clear();
  newest_epoch_.clear();
  for (const auto& [key, unsent] : unsent_) {
    int64_t& newest = newest_epoch_[key.first];
    newest = std::max(newest, key.second);
  }
  Dial();
}

void Worker::Crash(Duration away, bool silent) {
  if (!up_) return;
  timeline_.Note(id_ + (silent ? " is lost" : " crashes"));
  up_ = false;
  for (auto& [key, share] : shares_) {
    if (!share.over) ranks_.Kill(*this, key);
  }
  if (stream_) {
    stream_->Drop(silent);
    coordinator_.Remove(*stream_);
    stream_.reset();
  }
  timeline_.After(away, [this] { Boot(); });
}

void Worker::Freeze(Duration duration) {
  if (!up_) return;
  timeline_.Note(id_ + " is frozen");
  frozen_until_ = std::max(frozen_until_, timeline_.now() + duration);
}

void Worker::Cut(Duration duration) {
  timeline_.Note(id_ + " is cut off");
  cut_until_ = std::max(cut_until_, timeline_.now() + duration);
}

void Worker::Drain() {
  if (!up_ || draining_ || timeline_.now() <= frozen_until_) return;
  timeline_.Note(id_ + " drains");
  draining_ = true;
  if (registered_) SendHeartbeat();
  for (auto& [key, share] : shares_) {
    // The others of an attempt whose ranks come and go do so without these.
    if (!share.over && !ranks_.ComeAndGo(key)) ranks_.Stop(*this, key);
  }
  Timer(seconds(60), [this] {
    for (auto& [key, share] : shares_) {
      if (!share.over) OnStop(key.first, key.second, false);
    }
  });
  LeaveIfDone();
}

void Worker::LeaveIfDone() {
  if (!draining_ || Busy()) return;
  const bool settled = std::all_of(shares_.begin(), shares_.end(),
                                   [](const auto& entry) { return entry.second.Settled(); });
  if (settled) return End();
  Timer(kFarewell, [this] { End(); });
}

void Worker::End() {
  timeline_.Note(id_ + " ends");
  for (auto& [key, share] : shares_) {
    if (share.reports.empty()) continue;
    unsent_[key] = {ranks_.Describe(*this, key), share};
  }
  up_ = false;
  if (stream_) {
    stream_->HangUp();
    coordinator_.Remove(*stream_);
    stream_.reset();
  }
  timeline_.After(timeline_.Between(milliseconds(100), seconds(10)), [this] { Boot(); });
}

bool Worker::Busy() const {
  return std::any_of(shares_.begin(), shares_.end(),
                     [](const auto& entry) { return !entry.second.over; });
}

// ------------------------------------------------------------------------------------ connection

void Worker::Dial() {
  registered_ = false;
  if (coordinator_.service() == nullptr) {
    Timer(timeline_.Between(milliseconds(1), milliseconds(20)), [this] { LoseStream(); });
    return;
  }
  stream_ = std::make_shared<Stream>(timeline_, coordinator_, *this);
  coordinator_.Add(stream_);
  WorkerHello hello;
  hello.worker_id = id_;
  hello.incarnation = "boot " + std::to_string(boot_);
  hello.version = kVersion;
  hello.api_level = kApiLevel;
  hello.running = Running();
  hello.profile.device = "cuda";
  hello.profile.cores = gpus_;
  hello.profile.memory_limit_bytes = 1 << 30;
  for (int64_t index = 0; index < gpus_; ++index) {
    hello.profile.devices.emplace_back().index = index;
    hello.profile.devices.back().memory_limit_bytes = 1 << 30;
  }
  register_sent_ = timeline_.now();
  stream_->Send([hello](Service& service, const std::shared_ptr<WorkerLink>& link) {
    service.Attach(link, hello);
  });
  const Duration patience = patience_.count() == 0
                                ? Duration(kRegisterPatience)
                                : std::min<Duration>(kRegisterPatience, patience_);
  Timer(patience, [this, stream = std::weak_ptr(stream_)] {
    if (!registered_ && stream_ && stream.lock() == stream_) LoseStream();
  });
}

void Worker::LoseStream() {
  if (stream_) {
    stream_->HangUp();
    coordinator_.Remove(*stream_);
  }
  OnClosed();
}

void Worker::OnClosed() {
  registered_ = false;
  if (stream_) {
    stream_->HangUp();
    coordinator_.Remove(*stream_);
    stream_.reset();
  }
  for (auto& [key, share] : shares_) share.sent = 0;
  heartbeats_sent_.clear();
  ++heartbeat_timer_;
  const auto wait = backoff_->Next(lease_->LongestBreak());
  Timer(std::chrono::duration_cast<Duration>(wait), [this] {
    if (!stream_) Dial();
  });
}

void Worker::OnRefused(const std::string& why) {
  timeline_.Note(id_ + " is refused: " + why);
  GiveUpWork();
  End();
}

void Worker::OnRegistered(double lease_seconds, double heartbeat_seconds,
                          const std::vector<AttemptKey>& adopted) {
  registered_ = true;
  timeline_.Note(id_ + " is attached");
  backoff_->Reset();
  lease_->SetLength(FromSeconds(lease_seconds));
  lease_->Renew(register_sent_);
  heartbeat_every_ = FromSeconds(heartbeat_seconds);
  patience_ = FromSeconds(lease_seconds / 2);
  WatchLease();
  HeartbeatLater();
  std::vector<Key> strangers;
  for (auto& [key, share] : shares_) {
    const bool known = std::any_of(adopted.begin(), adopted.end(), [&](const AttemptKey& k) {
      return k.job_id == key.first && k.epoch == key.second;
    });
    if (!known && !share.over) strangers.push_back(key);
    for (RankLog& log : share.logs) log.sent = log.stored;
    for (const Checkpoint& checkpoint : share.checkpoints) SendCheckpoint(checkpoint);
  }
  for (const Key& key : strangers) OnStop(key.first, key.second, false);
  for (const auto& [key, unsent] : unsent_) {
    for (const Checkpoint& checkpoint : unsent.share.checkpoints) SendCheckpoint(checkpoint);
    for (const PlacementReport& report : unsent.share.reports) SendReport(key, report);
  }
  for (auto& [key, share] : shares_) Pump(key, share);
}

void Worker::HeartbeatLater() {
  const Duration wait =
      Busy() ? std::min<Duration>(heartbeat_every_, kProgressEvery) : heartbeat_every_;
  Timer(wait, [this, timer = ++heartbeat_timer_] {
    if (timer != heartbeat_timer_ || !registered_) return;
    if (!heartbeats_sent_.empty() &&
        timeline_.now() - heartbeats_sent_.begin()->second > patience_) {
      return LoseStream();
    }
    SendHeartbeat();
    HeartbeatLater();
  });
}

void Worker::SendHeartbeat() {
  const int64_t sequence = ++heartbeat_;
  heartbeats_sent_[sequence] = timeline_.now();
  stream_->Send([sequence, running = Running(), draining = draining_](
                    Service& service, const std::shared_ptr<WorkerLink>& link) {
    service.Heartbeat(link, sequence, running, draining);
  });
  std::erase_if(shares_, [](const auto& entry) { return entry.second.Settled(); });
}

void Worker::OnHeartbeatAck(int64_t sequence) {
  const auto sent = heartbeats_sent_.find(sequence);
  if (sent == heartbeats_sent_.end()) return;
  lease_->Renew(sent->second);
  heartbeats_sent_.erase(heartbeats_sent_.begin(), std::next(sent));
  WatchLease();
}

void Worker::WatchLease() {
  Timer(std::max(lease_->Deadline() - timeline_.now(), Duration(0)),
        [this, timer = ++lease_timer_] {
          if (timer != lease_timer_) return;
          if (!lease_->Expired()) return WatchLease();
          GiveUpWork();
        });
}

void Worker::GiveUpWork() {
  for (auto& [key, share] : shares_) {
    if (share.over) continue;
    timeline_.Note(id_ + " gives up " + key.first);
    ranks_.Kill(*this, key);
    PlacementReport report;
    report.epoch = key.second;
    report.event = PlacementEvent::kFailed;
    report.reason = Reason::kWorkerLost;
    report.message = "the worker's lease ran out";
    OnReport(key, report);
  }
}

// --------------------------------------------------------------------------------------- orders

void Worker::OnStart(const StartOrder& order) {
  const Key key{order.job_id, order.epoch};
  // A running attempt may get ranks here again, which have greater numbers than those before.
  if (const auto before = shares_.find(key); before != shares_.end()) {
    const bool again = order.joins && order.ranks.front() > before->second.logs.back().first_rank;
    if (!again) return;
    if (!before->second.over) OnStop(order.job_id, order.epoch, false);
  }
  int64_t& newest = newest_epoch_[order.job_id];
  if (order.epoch < newest || (order.epoch == newest && !order.joins)) {
    return SendStopped(order.job_id, order.epoch);
  }
  if (lease_->Expired()) return;
  if (draining_) return SendStopped(order.job_id, order.epoch);
  newest = order.epoch;
  for (auto& [other, share] : shares_) {
    if (other.first == order.job_id && !share.over) OnStop(other.first, other.second, false);
  }
  std::deque<RankLog> logs_before;
  if (const auto before = shares_.find(key); before != shares_.end()) {
    logs_before = std::move(before->second.logs);
    shares_.erase(before);
  }
  Share& share = shares_[key];
  share.logs = std::move(logs_before);
  share.logs.emplace_back().first_rank = order.ranks.front();
  ranks_.Start(*this, order);
  if (registered_) HeartbeatLater();
}

void Worker::OnStop(const std::string& job_id, int64_t epoch, bool graceful) {
  int64_t& newest = newest_epoch_[job_id];
  newest = std::max(newest, epoch);
  const auto share = shares_.find({job_id, epoch});
  if (share == shares_.end()) return SendStopped(job_id, epoch);
  if (share->second.over) return;
  if (graceful) return ranks_.Stop(*this, share->first);
  ranks_.Kill(*this, share->first);
  PlacementReport report;
  report.epoch = epoch;
  report.event = PlacementEvent::kStopped;
  OnReport(share->first, report);
}

void Worker::OnMembership(const coordinator::MembershipOrder& order) {
  const Key key{order.job_id, order.epoch};
  const auto share = shares_.find(key);
  if (share != shares_.end() && !share->second.over) ranks_.SetMembership(*this, key, order);
}

void Worker::OnCheckHealth(int64_t request_id) {
  Timer(timeline_.Between(milliseconds(100), seconds(3)), [this, request_id] {
    if (!registered_) return;
    stream_->Send([request_id](Service& service, const std::shared_ptr<WorkerLink>& link) {
      service.ReportHealth(link, {request_id, "", -1});
    });
  });
}

// -------------------------------------------------------------------------------------- reports

std::vector<RunningAttempt> Worker::Running() {
  std::vector<RunningAttempt> running;
  for (const auto& [key, share] : shares_) {
    if (!share.over || share.sent < share.reports.size()) {
      running.push_back(ranks_.Describe(*this, key));
    }
  }
  for (const auto& [key, unsent] : unsent_) running.push_back(unsent.running);
  return running;
}

void Worker::OnReport(const Key& key, PlacementReport report) {
  const auto found = shares_.find(key);
  if (found == shares_.end()) return;
  Share& share = found->second;
  report.first_rank = share.logs.back().first_rank;
  const bool ends = IsEnd(report.event);
  if (ends) share.over = true;
  share.reports.push_back(std::move(report));
  // Reports carry no progress: its last state goes first.
  if (ends && registered_) SendHeartbeat();
  Pump(key, share);
  LeaveIfDone();
}

void Worker::OnCheckpoint(const Key& key, CheckpointRecord checkpoint,
                          std::optional<int64_t> resume_step) {
  const auto found = shares_.find(key);
  if (found == shares_.end()) return;
  Checkpoint kept{std::move(checkpoint), resume_step};
  if (registered_) SendCheckpoint(kept);
  found->second.checkpoints.push_back(std::move(kept));
  if (found->second.checkpoints.size() > kKeptCheckpoints) found->second.checkpoints.pop_front();
}

void Worker::OnLine(const Key& key, int64_t rank) {
  const auto found = shares_.find(key);
  if (found == shares_.end()) return;
  RankLog& log = found->second.logs.back();
  coordinator::LogRecord& line = log.lines.emplace_back();
  line.epoch = key.second;
  line.rank = rank;
  line.text = std::to_string(log.stored + std::ssize(log.lines));
  Pump(key, found->second);
}

void Worker::OnLogAck(const Key& key, int64_t first_rank, int64_t position) {
  const auto found = shares_.find(key);
  if (found == shares_.end()) return;
  for (RankLog& log : found->second.logs) {
    if (log.first_rank != first_rank) continue;
    while (log.stored < std::min(position, log.sent)) {
      rules_.SeeForgotten(key.first, log.lines.front());
      log.lines.pop_front();
      ++log.stored;
    }
  }
  LeaveIfDone();
}

void Worker::PumpLog(const Key& key, RankLog& log) {
  if (log.sent == log.stored + std::ssize(log.lines)) return;
  coordinator::LogAppend logs;
  logs.job_id = key.first;
  logs.epoch = key.second;
  logs.worker_id = id_;
  logs.first_rank = log.first_rank;
  logs.first_position = log.sent + 1;
  logs.lines.assign(log.lines.begin() + (log.sent - log.stored), log.lines.end());
  log.sent += std::ssize(logs.lines);
  stream_->Send([logs](Service& service, const std::shared_ptr<WorkerLink>& link) {
    service.AppendLogs(link, logs);
  });
}

void Worker::Pump(const Key& key, Share& share) {
  if (!registered_) return;
  for (RankLog& log : share.logs) PumpLog(key, log);
  while (share.sent < share.reports.size()) SendReport(key, share.reports[share.sent++]);
}

void Worker::SendReport(const Key& key, const PlacementReport& report) {
  stream_->Send(
      [job = key.first, report](Service& service, const std::shared_ptr<WorkerLink>& link) {
        service.Report(link, job, report);
      });
}

void Worker::SendCheckpoint(const Checkpoint& checkpoint) {
  stream_->Send([checkpoint](Service& service, const std::shared_ptr<WorkerLink>& link) {
    service.ReportCheckpoint(link, checkpoint.record, checkpoint.resume_step);
  });
}

void Worker::SendStopped(const std::string& job_id, int64_t epoch) {
  PlacementReport report;
  report.epoch = epoch;
  report.event = PlacementEvent::kStopped;
  SendReport({job_id, epoch}, report);
}

void Worker::OnReportAck(const Key& key, const PlacementReport& answered) {
  const auto is_answered = [&](const PlacementReport& report) {
    return report.event == answered.event && report.first_rank == answered.first_rank;
  };
  if (const auto old = unsent_.find(key); old != unsent_.end()) {
    auto& reports = old->second.share.reports;
    const auto named = std::find_if(reports.begin(), reports.end(), is_answered);
    if (named != reports.end()) reports.erase(reports.begin(), named + 1);
    if (reports.empty()) unsent_.erase(old);
  }
  const auto found = shares_.find(key);
  if (found == shares_.end()) return;
  Share& share = found->second;
  const auto sent_end = share.reports.begin() + static_cast<std::ptrdiff_t>(share.sent);
  const auto named = std::find_if(share.reports.begin(), sent_end, is_answered);
  if (named == sent_end) return;  // it was of ranks that were here before
  share.sent -= static_cast<size_t>(named + 1 - share.reports.begin());
  share.reports.erase(share.reports.begin(), named + 1);
  LeaveIfDone();
}

}  // namespace weft::simulation
