#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/env.h"
#include "common/status.h"
#include "worker/engine/comm/collective.h"
#include "worker/engine/tensor/context.h"
#include "worker/trainer/collective_accounts.h"
#include "worker/trainer/profile_report.h"

namespace weft::trainer {

/// Records some steps of one rank; every rank of the group makes one before the same step. Attached
/// to context and collectives for as long as it lives. Not thread-safe.
class ProfileRecording {
 public:
  /// `first_step` counts from 1. `accounts`: the accounts of the groups of this rank, which outlive
  /// this.
  ProfileRecording(engine::Context& context, const CollectiveAccounts& accounts, int64_t first_step,
                   int64_t steps);
  ~ProfileRecording();
  ProfileRecording(const ProfileRecording&) = delete;
  ProfileRecording& operator=(const ProfileRecording&) = delete;

  /// A step that took so long, and used so much, is done.
  void OnStep(double seconds, const TierUse& tiers);
  bool done() const { return steps_ >= wanted_; }

  /// Stops recording and gathers the events of all ranks, by rank. A collective: all ranks call it.
  Result<std::vector<std::string>> GatherEvents(engine::Collective& group);

  /// Writes what was gathered to `<run_dir>/profiles/step-00000012.json` in one piece, and sums up
  /// this rank's share of it.
  Result<ProfileReport> Write(Env& env, const std::string& run_dir,
                              const std::vector<std::string>& events) const;

 private:
  void Detach();
  std::string Events(int rank) const;
  ProfileReport Summarize() const;

  engine::Context& context_;
  const CollectiveAccounts& accounts_;
  const std::vector<CollectiveUse> before_;  ///< What the account said at the start.
  std::vector<CollectiveUse> after_;         ///< And at the end.
  const int64_t first_step_;
  const int64_t wanted_;
  int64_t steps_ = 0;
  double seconds_ = 0;
  double unix_seconds_;  ///< At steady_begin_: machines agree on no other clock.
  engine::Profiler::Time steady_begin_;
  engine::Profiler profiler_;
  TierUse tiers_;  ///< Most bytes, and all waits.
  std::vector<std::pair<engine::Profiler::Time, TierUse>> tier_samples_;  ///< One a step.
};

}  // namespace weft::trainer
