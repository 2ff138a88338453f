#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/scheduler/job_order.h"

namespace weft::coordinator {

/// A running job that may give way, with its turn among those that wait.
struct RankedActive {
  const ActiveJob* job = nullptr;
  Turn turn;
  double seconds_left = 0;
  double lost_seconds = 0;  ///< On each of its devices: since the checkpoint, and for the restart.
  ComputeShare share = {};
};

/// The right by which a job displaces another.
enum class Claim {
  kNone,
  kPriority,   ///< A higher one, in the same queue or over one that borrows.
  kQuota,      ///< What the other borrows belongs to its queue.
  kFairShare,  ///< Its queue holds less than its share, and would still do.
  kShorter,    ///< Much less is left of it, and its turn is first.
};

/// `wait_seconds`: what the job would wait otherwise.
Claim ClaimOf(const Turn& job, double wait_seconds, const RankedActive& victim,
              const QueueTree& held, const SchedulerRules& rules);

/// Running jobs that give way, and the place of the one that takes theirs.
struct Displacement {
  std::vector<const RankedActive*> victims;
  std::vector<std::string> reasons;  ///< By victim, in words: "has priority 5".
  Plan plan;
};

/// The order in which running jobs are asked to give way: the lowest priority first, then those
/// that lose the least.
void SortByLoss(std::vector<RankedActive>& active);

/// The first of `active`, as sorted, on which the job has a claim and that are enough to place
/// `wanted` on what they free and `pool`; none of them is spare. Nullopt: there are not enough.
std::optional<Displacement> FindVictims(const RankedJob& job, const Plan& wanted,
                                        double wait_seconds, std::span<const RankedActive> active,
                                        const CapacityPool& pool, const QueueTree& held,
                                        const SchedulerRules& rules);

}  // namespace weft::coordinator
