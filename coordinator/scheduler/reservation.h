#pragma once

#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/scheduler/capacity.h"

namespace weft::coordinator {

/// What a job that waits will have, and when.
struct Reservation {
  double seconds = 0;  ///< From now.
  Plan plan;
  CapacityPool left;                    ///< Free at that time besides the plan.
  std::vector<std::string> blocked_by;  ///< Jobs that end before, the last ones; a few.
};

/// When jobs give back what they hold.
class Releases {
 public:
  /// `plan` and `job_id` outlive this. An infinite time is never.
  void Add(double seconds, const Plan& plan, const std::string& job_id);

  /// The jobs of `plans`, as added, give back nothing at their time any more. Those that would
  /// have.
  std::vector<const Plan*> Remove(const std::set<const Plan*>& plans);

  /// Seconds until there is as much as `amount` besides what is free already, wherever that is;
  /// infinite: at no time that is known.
  double SecondsUntil(const ComputeAmount& amount, ComputeAmount free);

  /// The earliest time at which there is room for `wanted`, in `pool` with what was given back by
  /// then; nullopt: at no time that is known.
  std::optional<Reservation> Reserve(const Plan& wanted, CapacityPool pool);

  /// The releases that are yet to come, soonest first, as (seconds, amount).
  std::vector<std::pair<double, ComputeAmount>> Amounts();

 private:
  struct Release {
    double seconds;
    const Plan* plan;
    const std::string* job_id;
  };
  void Sort();

  std::vector<Release> releases_;
  bool sorted_ = true;
};

}  // namespace weft::coordinator
