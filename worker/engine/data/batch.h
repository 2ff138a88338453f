#pragma once

#include <cstdint>
#include <vector>

namespace weft::engine {

/// Token sequences for one forward and backward pass. All vectors but `sequence_starts` hold
/// `sequences * length` entries, one sequence after another.
struct Batch {
  int64_t sequences = 0;
  int64_t length = 0;              ///< Tokens per sequence.
  std::vector<int32_t> tokens;     ///< In [0, vocabulary).
  std::vector<int32_t> targets;    ///< Next token, or kernels::kIgnoreTarget where there is none.
  std::vector<int32_t> positions;  ///< Position of each token in its document or sequence.

  /// Where each run of tokens that attend to each other begins, and last `sequences * length`: a
  /// run is a whole sequence, or one document of it when documents are masked from each other.
  std::vector<int32_t> sequence_starts;

  int64_t target_count = 0;  ///< Targets that are not ignored.
};

}  // namespace weft::engine
