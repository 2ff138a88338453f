#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "coordinator/store/records.h"

namespace weft::coordinator {

/// How failures make machines suspect.
struct SuspicionRules {
  /// A machine with this much gets no ranks until a person says so; 0: never. Three failures reach
  /// it, though the first of them count a little less.
  double quarantine_at = 2.5;
  /// Suspicion halves in this time.
  double half_life_seconds = 6 * 3600;
};

/// How much a failure for this reason speaks against the machine on which it began; 0: nothing.
double BlameOf(Reason reason);

/// What machines are suspected of: failures that may have been theirs, older ones counting less.
/// One job counts once against a machine for what its own program may have done (RANK_DIED, HUNG).
/// Not thread-safe.
class SuspicionTable {
 public:
  explicit SuspicionTable(SuspicionRules rules) : rules_(rules) {}

  void Load(const SuspicionRecord& record) { machines_[record.worker_id].record = record; }

  /// A failure that began on that worker at `now` (seconds since 1970 UTC). What is to be stored;
  /// nullopt: it does not count.
  std::optional<SuspicionRecord> Blame(const std::string& worker_id, const std::string& job_id,
                                       Reason reason, double now);

  /// The worker is beyond suspicion again.
  SuspicionRecord Clear(const std::string& worker_id, double now);

  double Of(const std::string& worker_id, double now) const;
  bool TooMuch(const std::string& worker_id, double now) const {
    return rules_.quarantine_at > 0 && Of(worker_id, now) >= rules_.quarantine_at;
  }
  /// The suspicion of all of whom there was something to say, also where nothing is left.
  std::map<std::string, double> All(double now) const;
  void Forget(const std::string& worker_id) { machines_.erase(worker_id); }

 private:
  struct Machine {
    SuspicionRecord record;
    std::set<std::string> jobs;  ///< Of programs that failed there.
  };

  SuspicionRules rules_;
  std::map<std::string, Machine> machines_;
};

}  // namespace weft::coordinator
