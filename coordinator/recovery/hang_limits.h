#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "common/spec/plan.h"
#include "common/status.h"

namespace weft::coordinator {

/// When ranks that show nothing count as hung. The limits follow from what the plan predicts and
/// from what was seen of the job, so that a hang of something quick is found soon and what is slow
/// is none.
struct HangRules {
  /// A step may take this long, whatever is expected of it; 0: nothing ever counts as hung.
  double step_seconds = 20;
  /// Otherwise this many times the longest step known, or what is expected of something else.
  double step_factor = 5;
  /// So may anything else. Its signs of life are looked for once a second, so less than a few
  /// seconds would find what is none.
  double other_least_seconds = 20;
  /// Anything else may go without any sign of life for no longer than this, or step_factor steps:
  /// also what nothing is expected of, and anything while a rank waits for a disk.
  double other_seconds = 300;
};

/// "auto": those above. A number of seconds, 0 to 1000000: step_seconds and other_least_seconds
/// (but not less than 3), and five times as long for other_seconds. kInvalid for anything else.
Result<HangRules> HangRulesOf(const std::string& text);

/// What a worker last said about its living ranks of an attempt.
struct PlacementActivity {
  std::string worker_id;
  std::string activity;             ///< As in weft.v1.RunningAttempt.
  double silent_seconds = 0;        ///< Since any of them showed a sign of life.
  double longest_step_seconds = 0;  ///< Lately; 0: none has ended.
  std::string rank_states;          ///< For people.
  int64_t saved_bytes = 0;          ///< That they are saving; 0: none, or not known.
  int64_t sequences = 0;            ///< That the attempt evaluates; 0: none, or not known.
};

/// Kinds of what ranks do, which each have a limit of their own.
enum class ActivityKind : uint8_t {
  kStep,
  kFirstStep,  ///< Of an attempt; it allocates and compiles.
  kStart,      ///< Up to there, and loading.
  kEvaluation,
  kSave,
  kOther,  ///< Waiting for ranks that come and go, and for their exchanges.
};
inline constexpr int kActivityKinds = 6;

ActivityKind KindOf(const PlacementActivity& placement);

/// How fast the machine of some ranks is; 0: not measured.
struct MachineRates {
  int64_t ranks = 0;  ///< There.
  double copy_bytes_per_second = 0;
  double disk_write_bytes_per_second = 0;
};

/// What is known of the times of an attempt before it has shown anything; 0: nothing.
struct ActivityForecast {
  double step_seconds = 0;  ///< By the plan.
  double sequences_per_step = 0;
  double memory_seconds = 0;  ///< To write to all memory of the plan once.
  double load_seconds = 0;    ///< To read weights and optimizer state.
  double disk_bytes_per_second = 0;
  bool on_gpus = false;  ///< Whose first steps load kernels and try some: nothing says how long.
};

/// Of an attempt by `plan` with `global_batch` sequences a step, on these machines.
ActivityForecast ForecastOf(const Plan& plan, int64_t global_batch,
                            std::span<const MachineRates> machines);

/// For how long the ranks of a job were silent at each kind of activity, and then went on. Not
/// thread-safe.
class QuietTimes {
 public:
  /// What all placements of the newest attempt do now.
  void See(std::span<const PlacementActivity> placements);
  /// Another attempt begins. A silence that lasted to the end of the one before was none that
  /// passed.
  void NextAttempt();

  /// 0: it was never silent.
  double LongestSeconds(ActivityKind kind) const { return longest_[static_cast<size_t>(kind)]; }
  /// The longest step of the attempt before; 0: it made none.
  double step_seconds_before() const { return step_seconds_before_; }

 private:
  std::array<double, kActivityKinds> longest_{};
  ActivityKind kind_ = ActivityKind::kOther;
  double silent_seconds_ = 0;
  double step_seconds_ = 0;
  double step_seconds_before_ = 0;
};

/// How long silence may last, and what that follows from.
struct HangLimit {
  double seconds = 0;
  std::string why;  ///< "steps took up to 0.4 s"
};

/// The limits of an attempt whose placements do this. Their ranks wait for each other, so the steps
/// of all, what all save and whether any waits for a disk count together.
class HangLimits {
 public:
  /// What it is made of outlives it.
  HangLimits(std::span<const PlacementActivity> placements, const ActivityForecast& forecast,
             const QuietTimes& quiet, const HangRules& rules);

  /// Of one of the placements.
  HangLimit Of(const PlacementActivity& placement) const;

 private:
  /// How long what it does should take; nullopt: nothing is known.
  std::optional<double> ExpectedSeconds(const PlacementActivity& placement) const;

  const ActivityForecast& forecast_;
  const QuietTimes& quiet_;
  const HangRules& rules_;
  double own_step_seconds_ = 0;  ///< The longest of this attempt, or of its plan.
  double step_seconds_ = 0;      ///< Or of the attempt before, which may have had another plan.
  double saved_bytes_ = 0;
  bool waits_for_disk_ = false;
};

/// "75 s", "0.4 s"
std::string HangSecondsText(double seconds);

}  // namespace weft::coordinator
