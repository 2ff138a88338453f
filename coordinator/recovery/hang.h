#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace weft::coordinator {

/// When ranks that show nothing count as hung.
struct HangRules {
  /// A step may take this long, whatever is expected of it; 0: nothing ever counts as hung.
  double least_seconds = 60;
  /// Otherwise this many times the longest step known, measured or predicted.
  double step_factor = 10;
  /// What is no step (starting, evaluating, saving, loading) may go without any sign of life for
  /// this many times least_seconds: a slow disk or a peer may keep a rank waiting.
  double other_factor = 5;
};

/// What a worker last said about its living ranks of an attempt.
struct PlacementActivity {
  std::string worker_id;
  std::string activity;       ///< As in weft.v1.RunningAttempt.
  double silent_seconds = 0;  ///< Since any of them showed a sign of life.
  double longest_step_seconds = 0;
  std::string rank_states;  ///< For people.
};

/// The rank that alone does not wait as all others of the attempt do, where there is just one such:
/// its process is stopped, waits for a disk, or computes while the others sleep.
struct OddRank {
  std::string worker_id;
  std::string rank;  ///< "rank 1"
  std::string state;
};
std::optional<OddRank> FindOddRank(std::span<const PlacementActivity> placements);

/// Why the attempt counts as hung: every one of its placements has been silent for longer than what
/// it does may take. nullopt: it does not. One placement that shows life is enough, as the others
/// may wait for it. Names the odd rank where there is one. `predicted_step_seconds`: of the plan;
/// 0: unknown.
std::optional<std::string> FindHang(std::span<const PlacementActivity> placements,
                                    double predicted_step_seconds, const HangRules& rules);

}  // namespace weft::coordinator
