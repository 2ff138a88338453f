#pragma once

#include <cstddef>
#include <span>

#include "common/spec/train_spec.h"
#include "worker/engine/techniques/sequence_losses.h"

namespace weft::engine {

/// What direct preference optimisation makes of the pairs of a batch.
struct DpoResult {
  /// Each of the two sequences of a pair has the loss of the pair, so that the mean over sequences
  /// is that over pairs.
  SequenceLosses losses;
  double chosen_reward = 0;  ///< Mean over the pairs; likewise below.
  double rejected_reward = 0;
  double accuracy = 0;  ///< Share of the pairs whose chosen answer has the larger reward.
};

/// Rafailov et al. 2023 (arXiv 2305.18290), equation 7, with the label smoothing of cDPO (Mitchell
/// 2023): with rewards r = beta (log p - log p of the reference) and z = r(chosen) - r(rejected),
///   loss = -(1 - smoothing) log sigmoid(z) - smoothing log sigmoid(-z).
/// `log_probabilities` [2 pairs]: those of the network, of the chosen answer and the rejected one
/// after each other; `reference` alike.
DpoResult DpoLosses(const PreferenceSpec& spec, std::span<const double> log_probabilities,
                    std::span<const double> reference);

}  // namespace weft::engine
