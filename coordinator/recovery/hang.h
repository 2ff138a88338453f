#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/status.h"

namespace weft::coordinator {

/// When ranks that show nothing count as hung. The limits follow from the steps of the job, so that
/// a hang of quick steps is found soon and slow steps are none.
struct HangRules {
  /// A step may take this long, whatever is expected of it; 0: nothing ever counts as hung.
  double step_seconds = 20;
  /// Otherwise this many times the longest step known, measured or predicted.
  double step_factor = 5;
  /// What is no step (starting, evaluating, saving, loading, exchanging) may go without any sign of
  /// life for this long, or step_factor steps: a slow disk or a peer may keep a rank waiting. So
  /// may training until a step has ended, since the first one allocates and compiles, and while a
  /// rank waits for a disk.
  double other_seconds = 300;
};

/// "auto": those above. A number of seconds, 0 to 1000000: step_seconds, and five times as long for
/// what is no step. kInvalid for anything else.
Result<HangRules> HangRulesOf(const std::string& text);

/// What a worker last said about its living ranks of an attempt.
struct PlacementActivity {
  std::string worker_id;
  std::string activity;             ///< As in weft.v1.RunningAttempt.
  double silent_seconds = 0;        ///< Since any of them showed a sign of life.
  double longest_step_seconds = 0;  ///< Lately; 0: none has ended.
  std::string rank_states;          ///< For people.
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
