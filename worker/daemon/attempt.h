#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "weft/v1/worker.pb.h"
#include "worker/daemon/device_monitor.h"
#include "worker/daemon/metrics.h"
#include "worker/daemon/progress.h"
#include "worker/daemon/rank_process.h"
#include "worker/daemon/time_ledger.h"
#include "worker/daemon/verdict.h"
#include "worker/trainer/control.h"

namespace weft::daemon {

class Attempt;

/// What all attempts of a worker share.
struct AttemptSettings {
  std::string trainer;                           ///< Path of weft-trainer.
  std::string host;                              ///< Address ranks listen on for collectives.
  std::string cache_dir;                         ///< Token shards.
  std::string run_root;                          ///< Job folders must be inside; empty: anywhere.
  std::string spec_dir;                          ///< Where ranks find their attempt spec.
  std::map<std::string, double> flops_per_core;  ///< Measured ceiling of a core, by precision.
  std::string owner;  ///< Environment entry by which every rank of this daemon is known.
  /// What CUDA_VISIBLE_DEVICES calls each GPU that ranks may use, by index.
  std::map<int64_t, std::string> devices = {};
  std::map<std::string, double> flops_per_device = {};  ///< Measured ceiling, by precision.
  /// As in RankPulse.
  std::chrono::nanoseconds longest_spin = std::chrono::minutes(30);
  /// Other files of jobs must be below one of these folders; none: anywhere.
  std::vector<std::string> data_roots = {};
  std::string memory_dir = {};  ///< Where ranks keep snapshots; empty: nowhere.
};

/// Answer to a rendezvous request: an error message (empty on success) and the value.
using StoreAnswer = std::function<void(const std::string& error, const std::string& value)>;

/// Hears what the ranks of an attempt do. Calls come on the io_context's thread.
class AttemptListener {
 public:
  virtual ~AttemptListener() = default;
  /// The state changed. After FINISHED, FAILED and STOPPED no rank is alive, and nothing follows.
  virtual void OnReport(v1::AttemptReport report) = 0;
  virtual void OnLogLine(Attempt& attempt, v1::LogLine line) = 0;
  virtual void OnCheckpoint(v1::CheckpointReport report) = 0;
  virtual void OnProfile(v1::ProfileReply reply) = 0;
  /// `request` lacks its request id. `answer` may be called later, also after the attempt's end.
  virtual void OnStoreRequest(Attempt& attempt, v1::StoreRequest request, StoreAnswer answer) = 0;
};

/// The ranks of one attempt on this worker: one process each, all in one process group. The first
/// failure kills them all; no end is reported before a scan of /proc has shown that none is left.
/// Not thread-safe.
class Attempt {
 public:
  Attempt(boost::asio::io_context& io, const Clock& clock, const AttemptSettings& settings,
          v1::StartAttempt start, AttemptListener& listener, Metrics& metrics);
  ~Attempt();
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  /// Starts the ranks, or reports FAILED.
  void Start();

  /// Ends the ranks: graceful lets them finish their step and save first. Then reports STOPPED, or
  /// FINISHED when they were done before.
  void Stop(bool graceful);

  /// Kills the ranks at once and reports FAILED with this reason.
  void Abort(v1::Reason reason, const std::string& message);

  /// The ranks of the attempt from the next outer step on: tells those here, unless they know it.
  void SetMembership(const v1::Membership& membership);

  /// Asks rank 0 to record steps. OnProfile always answers: with an error when rank 0 does not
  /// train here, when it is recording already, and when the attempt ends before it is done.
  void Profile(const v1::ProfileAttempt& request);

  /// Something happened on a GPU of this machine: ranks there have it in their log. When it broke,
  /// all are killed and FAILED is reported.
  void OnDevice(const DeviceEvent& event);

  void ReapChildren();

  const std::string& job_id() const { return start_.job_id(); }
  int64_t epoch() const { return start_.epoch(); }
  /// Whether its ranks come and go between outer steps.
  bool elastic() const { return start_.membership() > 0; }
  /// Numbers of the ranks here.
  const google::protobuf::RepeatedField<int32_t>& ranks() const { return start_.ranks(); }
  int32_t first_rank() const { return ranks().empty() ? 0 : ranks().Get(0); }
  /// All ranks are gone and the end is reported.
  bool over() const { return over_; }
  /// For heartbeats: living ranks, progress, and what they do.
  v1::RunningAttempt Running();

 private:
  struct Rank;

  /// Which phase is to be run, and what surrounds it in the job.
  Status FindPhase();
  Status CheckStart() const;
  Status StartRank(int index);
  /// The environment in which a rank sees its GPU and no other; empty with a plan for CPUs.
  Result<std::vector<std::string>> DeviceEnvironment(int rank) const;
  void AddLogLine(int rank, bool is_stderr, std::string text);

  void OnControl(Rank& rank, const std::string& line);
  void On(Rank& rank, const trainer::HelloMessage& hello);
  void On(Rank& rank, const trainer::StartedMessage& started);
  void On(Rank& rank, const trainer::ProgressMessage& progress);
  void On(Rank& rank, const trainer::EvaluationMessage& evaluation);
  void On(Rank& rank, const trainer::CheckpointMessage& message);
  void On(Rank& rank, const trainer::EventMessage& event);
  void On(Rank& rank, const trainer::ActivityMessage& activity);
  void On(Rank& rank, const trainer::AliveMessage& alive);
  void On(Rank& rank, const trainer::ProfiledMessage& profiled);
  void On(Rank& rank, const trainer::StoreSetMessage& set);
  void On(Rank& rank, const trainer::StoreGetMessage& get);
  void On(Rank& rank, const trainer::FinishedMessage& finished);
  void On(Rank& rank, const trainer::StoppedMessage& stopped);
  void On(Rank& rank, const trainer::FailedMessage& failed);
  void AnswerProfile(int64_t request_id, const std::string& error, const std::string& report_json);
  void AskStore(Rank& rank, int64_t id, v1::StoreRequest request);
  void AnswerStore(Rank& rank, int64_t id, const std::string& error, const std::string& value);

  void OnRankEnd(Rank& rank, int wait_status);
  void OnFailure(Rank& rank);
  void KillRanks();
  void FinishIfAllEnded();
  void ReportEnd();
  v1::AttemptReport EndReport() const;
  v1::AttemptReport NewReport(v1::AttemptState state) const;
  std::vector<std::string> Marker() const;
  std::string Name() const;
  double Utilization() const;
  /// Whether the rank that writes for all is here.
  bool HasFirstRank() const;
  void AddActivity(v1::RunningAttempt& running);
  void EndSave(const Rank& rank);

  boost::asio::io_context& io_;
  const Clock& clock_;
  const AttemptSettings& settings_;
  v1::StartAttempt start_;
  AttemptListener& listener_;
  Metrics& metrics_;
  boost::asio::steady_timer timer_;
  JobSpec job_;  ///< The whole one.
  PhasePlace place_;
  TimeLedger ledger_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // false: callbacks do nothing

  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<const Rank*> failures_;  // in order, before anything was killed from here
  std::vector<std::string> spec_paths_;
  ProgressRecord progress_;
  double checkpoint_seconds_ = 0;  // what steps waited for, by the first rank here
  double evaluation_seconds_ = 0;
  std::optional<std::chrono::nanoseconds> saving_since_;  // the first rank, with no step after it
  std::optional<int64_t> resume_step_;
  std::optional<int64_t> profile_request_;  // that rank 0 is working on
  v1::Membership membership_;               // newest; without a number: none
  int first_rank_ = 0;                      // of the attempt
  bool training_ = false;
  bool failing_ = false;  // a rank failed; the others are given a moment, then killed
  bool killed_ = false;
  bool finishing_ = false;
  bool over_ = false;
  std::optional<std::pair<v1::Reason, std::string>> aborted_;
  int64_t oom_kills_before_ = 0;
  std::string summary_json_;
};

}  // namespace weft::daemon
