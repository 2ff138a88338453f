#pragma once

#include <cstdint>
#include <vector>

namespace weft::engine {

/// Which data of a job sequences are of.
enum class DataPart : uint8_t { kTraining, kValidation };

/// What a model says of the sequences of a batch, of all ranks together, in the order of the batch.
struct SequenceScores {
  std::vector<int64_t> indices;           ///< Batch::sequence_indices.
  std::vector<double> log_probabilities;  ///< Of all targets of each together.
};

/// What a loss of whole sequences makes of their scores.
struct SequenceLosses {
  std::vector<double> losses;       ///< Of each; the loss of the batch is their mean.
  std::vector<double> derivatives;  ///< Of the sum of all losses, by each log-probability.
};

}  // namespace weft::engine
