#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/spec/plan.h"
#include "common/spec/resource_use.h"
#include "common/status.h"
#include "weft/v1/coordinator.pb.h"
#include "weft/v1/plan.pb.h"
#include "worker/daemon/device_metrics.h"
#include "worker/daemon/time_ledger.h"
#include "worker/trainer/control.h"

namespace weft::daemon {

/// The metrics of this daemon and of the runs that have ranks here, for Prometheus. What is true of
/// a whole run (label run) is published by the worker of rank 0 only, so that sums over workers are
/// right. Updated on the io_context's thread; Text and attached may be called on any.
class Metrics {
 public:
  explicit Metrics(const Clock& clock);
  ~Metrics();

  /// All of them in the text format of Prometheus.
  std::string Text() const;
  /// As SetAttached said last.
  bool attached() const;

  void SetWorker(const std::string& worker_id, int64_t cores, int64_t memory_limit_bytes);
  DeviceMetrics& devices() { return *devices_; }
  /// Looks at the certificate in that file whenever the metrics are read.
  void WatchCertificate(const std::string& path) { certificate_path_ = path; }
  void SetAttached(bool attached);
  void SetRunningAttempts(int64_t count);
  void SetWaitingLogLines(int64_t count);
  void CountDial();
  void CountLeaseExpiry();
  void CountAttemptEnd(const std::string& state);

  /// An attempt at `run` begins here; its series stay until some time after EndRun.
  void BeginRun(const std::string& run, int64_t epoch, const v1::Plan& plan, bool has_rank_zero);
  /// A rank here has become what rank 0 was, which is lost.
  void GainRankZero(const std::string& run, int64_t epoch, const v1::Plan& plan);
  /// Where rank 0 is: ranks have come or gone.
  void SetWorldSize(const std::string& run, int64_t ranks);

  /// Newest progress of the run. Ignored where rank 0 is not.
  void SetProgress(const std::string& run, const v1::Progress& progress);

  /// One optimizer step of one local rank took so long; phases as the rank measured them.
  void ObserveStep(const std::string& run, int rank, double step_seconds,
                   const std::map<std::string, double>& phase_seconds);

  /// Most memory a local rank has used, by component: so far, and since the step before.
  void SetMemory(const std::string& run, int rank, const MemoryBreakdown& peak,
                 const MemoryBreakdown& step);

  /// What one step of a local rank sent to others, waited for, and held by tier.
  void ObserveUse(const std::string& run, int rank, const std::vector<CollectiveUse>& collectives,
                  const TierUse& tiers);

  /// What a step reported about numbers that were not finite, dropped updates and the loss scale.
  void ObserveNumerics(const std::string& run, const trainer::ProgressMessage& step);
  /// What techniques have measured, by name.
  void ObserveTechniques(const std::string& run, const std::map<std::string, double>& metrics);

  /// A checkpoint was written and verified; the time of each stage.
  void ObserveCheckpoint(const std::string& run, const v1::Checkpoint& checkpoint,
                         const std::map<std::string, double>& stage_seconds);
  void CountFailedCheckpoint(const std::string& run);

  /// Wall time of the run's attempts here, so far. Grows only.
  void SetAccounted(const std::string& run, const TimeLedger& ledger);

  void EndRun(const std::string& run);

  /// Removes the series of runs that ended long ago. To be called now and then.
  void RemoveOldRuns();

 private:
  struct Families;
  struct Run;
  Run* Find(const std::string& run);

  const Clock& clock_;
  std::shared_ptr<prometheus::Registry> registry_;
  std::unique_ptr<Families> families_;
  std::unique_ptr<DeviceMetrics> devices_;
  std::map<std::string, std::unique_ptr<Run>> runs_;
  std::string certificate_path_;  ///< Set before the first read.
};

}  // namespace weft::daemon
