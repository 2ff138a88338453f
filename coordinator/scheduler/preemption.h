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
  double lost_seconds = 0;  ///< As of LostSeconds.
  ComputeShare share = {};
  double in_seconds = 0;  ///< It is as it will be after so long.
};

/// What a job loses on each of its GPUs, or cores, when it gives way: its training since the newest
/// verified checkpoint, and a restart.
double LostSeconds(const ActiveJob& job, const RestartRules& rules);

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

/// The lowest priority first, then those that lose the least on each of their GPUs, or cores.
void SortByLoss(std::vector<RankedActive>& active);

/// Jobs of `active` on which the job has a claim and that are enough to place `wanted` on what they
/// free and `pool`; none of them is spare. Nullopt: there are not enough. The lowest priority is
/// asked first, then those that lose the least of their work (LostSeconds x GPUs or cores) for each
/// GPU or core that `wanted` can use. Equal ones are asked in the order of `active`.
std::optional<Displacement> FindVictims(const RankedJob& job, const Plan& wanted,
                                        double wait_seconds, std::span<const RankedActive> active,
                                        const CapacityPool& pool, const QueueTree& held,
                                        const SchedulerRules& rules);

}  // namespace weft::coordinator
