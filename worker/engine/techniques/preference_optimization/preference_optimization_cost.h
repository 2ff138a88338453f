#pragma once

#include <string_view>

namespace weft {

// Metrics of a step, of the values before its update. The reward of an answer is beta times the log
// of its probability over that of the network at the start.
inline constexpr std::string_view kChosenRewardMetric = "preference_chosen_reward_nats";
inline constexpr std::string_view kRejectedRewardMetric = "preference_rejected_reward_nats";
inline constexpr std::string_view kRewardMarginMetric = "preference_reward_margin_nats";
inline constexpr std::string_view kRewardAccuracyMetric = "preference_reward_accuracy_ratio";

}  // namespace weft
