#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/recovery/job_logic.h"
#include "coordinator/service/worker_link.h"
#include "tests/simulation/coordinator.h"
#include "tests/simulation/ranks.h"
#include "tests/simulation/rules.h"
#include "tests/simulation/stream.h"
#include "tests/simulation/timeline.h"
#include "worker/daemon/backoff.h"
#include "worker/daemon/lease.h"

namespace weft::simulation {

/// A machine with GPUs and its daemon, which does as worker/daemon/agent.h: it dials, holds a
/// lease, starts and stops ranks, and reports until it has an answer.
class Worker : public RankListener {
 public:
  using Key = Ranks::Key;

  Worker(Timeline& timeline, Coordinator& coordinator, Rules& rules, Ranks& ranks, std::string id,
         int64_t gpus);

  const std::string& id() const override { return id_; }
  int64_t gpus() const { return gpus_; }

  void Boot();

  // What happens to it.
  /// Its processes are killed, and a new daemon comes after that time. `silent`: the machine is,
  /// and nobody hears of it.
  void Crash(Duration away, bool silent);
  /// All its processes are stopped for that time.
  void Freeze(Duration duration);
  /// Nothing comes through its network for that time.
  void Cut(Duration duration);
  /// SIGTERM: ranks save and stop, then the daemon ends, and a new one comes.
  void Drain();

  bool up() const { return up_; }
  Duration frozen_until() const { return frozen_until_; }
  Duration cut_until() const { return cut_until_; }
  bool Runs() const override { return up_ && timeline_.now() > frozen_until_; }
  bool IsReached() const override { return timeline_.now() > cut_until_; }

  // Of the stream.
  bool Has(const Stream& stream) const { return stream_.get() == &stream; }
  void OnRegistered(double lease_seconds, double heartbeat_seconds,
                    const std::vector<coordinator::AttemptKey>& adopted);
  void OnRefused(const std::string& why);
  void OnHeartbeatAck(int64_t sequence);
  void OnStart(const coordinator::StartOrder& order);
  void OnMembership(const coordinator::MembershipOrder& order);
  void OnStop(const std::string& job_id, int64_t epoch, bool graceful);
  void OnReportAck(const Key& key, const coordinator::PlacementReport& answered);
  void OnLogAck(const Key& key, int64_t first_rank, int64_t position);
  void OnCheckHealth(int64_t request_id);
  void OnClosed();

  // RankListener.
  void OnLine(const Key& key, int64_t rank) override;
  void OnReport(const Key& key, coordinator::PlacementReport report) override;
  void OnCheckpoint(const Key& key, coordinator::CheckpointRecord checkpoint,
                    std::optional<int64_t> resume_step) override;

 private:
  struct Checkpoint {
    coordinator::CheckpointRecord record;
    std::optional<int64_t> resume_step;
  };
  /// Lines of the ranks of an attempt that are here at one time.
  struct RankLog {
    int64_t first_rank = 0;
    std::deque<coordinator::LogRecord> lines;  ///< That are not stored yet, as far as is known.
    int64_t stored = 0;
    int64_t sent = 0;  ///< Up to this one, from 1, as the one before.
  };
  /// An attempt, and what of it the coordinator does not know yet.
  struct Share {
    bool over = false;
    std::deque<coordinator::PlacementReport> reports;
    size_t sent = 0;
    std::deque<Checkpoint> checkpoints;
    std::deque<RankLog> logs;  ///< Of ranks that were here before, then of these.

    bool Settled() const {
      return over && reports.empty() && std::all_of(logs.begin(), logs.end(), [](const auto& log) {
               return log.lines.empty();
             });
    }
  };
  /// What an earlier daemon left.
  struct Unsent {
    coordinator::RunningAttempt running;
    Share share;
  };

  /// Runs it after that time, unless the daemon has ended; when the machine is frozen then, after
  /// that.
  void Timer(Duration delay, std::function<void()> event);
  void Dial();
  void LoseStream();
  void SendHeartbeat();
  void HeartbeatLater();
  void WatchLease();
  void GiveUpWork();
  void Pump(const Key& key, Share& share);
  void PumpLog(const Key& key, RankLog& log);
  void SendReport(const Key& key, const coordinator::PlacementReport& report);
  void SendCheckpoint(const Checkpoint& checkpoint);
  void SendStopped(const std::string& job_id, int64_t epoch);
  std::vector<coordinator::RunningAttempt> Running();
  bool Busy() const;
  void LeaveIfDone();
  void End();

  Timeline& timeline_;
  Coordinator& coordinator_;
  Rules& rules_;
  Ranks& ranks_;
  const std::string id_;
  const int64_t gpus_;
  bool up_ = false;
  int64_t boot_ = 0;  ///< Timers of earlier daemons have another one.
  Duration frozen_until_{-1};
  Duration cut_until_{-1};

  std::shared_ptr<Stream> stream_;
  bool registered_ = false;
  bool draining_ = false;
  std::unique_ptr<daemon::Lease> lease_;
  std::unique_ptr<daemon::Backoff> backoff_;
  Duration register_sent_{0};
  Duration heartbeat_every_{0};
  Duration patience_{0};
  int64_t heartbeat_ = 0;
  int64_t heartbeat_timer_ = 0;
  int64_t lease_timer_ = 0;
  std::map<int64_t, Duration> heartbeats_sent_;
  std::map<Key, Share> shares_;
  std::map<std::string, int64_t> newest_epoch_;
  std::map<Key, Unsent> unsent_;  ///< On its disk.
};

}  // namespace weft::simulation
