#pragma once

#include <cstdint>
#include <vector>

namespace weft::engine {

/// Sequences for one forward and backward pass. They follow one another as the rows of a
/// [sequences, length] matrix; rows that are shorter are padded at their end.
///
/// What is to be learnt is in `targets` (a token a position: causal and masked language models) or
/// in `labels` (a class a sequence). Images come as `pixels` and have no tokens: `length` is then
/// what the model makes of one, the patches and one for the class.
struct Batch {
  int64_t sequences = 0;
  int64_t length = 0;  ///< Tokens per row, padding included.

  /// The longest a row can be. Sequence s of a step begins at token s * `stride` of its random
  /// numbers, whatever `length` the micro-batch has, so that no two micro-batches share any. 0:
  /// `length`.
  int64_t stride = 0;

  std::vector<int32_t> tokens;  ///< [sequences * length] in [0, vocabulary); none for images.

  /// [sequences * length]: the token to predict at each position, or kernels::kIgnoreTarget. None
  /// for classification.
  std::vector<int32_t> targets;

  std::vector<int32_t> positions;  ///< [sequences * length] in the document or sequence.

  /// Where each run of tokens that attend to each other begins, and last `sequences * length`: a
  /// run is a whole sequence, one document of it when documents are masked from each other, or the
  /// padding at the end of a row.
  std::vector<int32_t> sequence_starts;

  std::vector<int32_t> lengths;      ///< [sequences] without padding; none: all rows are full.
  std::vector<int32_t> token_types;  ///< [sequences * length] 0, 1 in the second text of a pair;
                                     ///< none: there are no pairs.
  std::vector<int32_t> labels;       ///< [sequences] in [0, classes); none: no classification.

  /// [sequences] of preference data: which of BatchSource::Sequences() each is. The two answers of
  /// a pair follow each other, the chosen one first with an even index. None: other data.
  std::vector<int32_t> sequence_indices;

  /// Ascending indices of the positions with targets, for losses that compute only these. Filled
  /// for masked language models, where they are few.
  std::vector<int32_t> target_rows;

  /// [sequences, channels, height, width], (value / 255 - mean) / deviation; none: text.
  std::vector<float> pixels;

  /// Targets that are not ignored, or labels; of preference data sequences, for the loss is of
  /// whole answers.
  int64_t target_count = 0;
  int64_t padding_tokens = 0;  ///< Positions that only fill up rows.

  /// Targets of target_count in each of equal parts of the sequences, in order, where these are of
  /// several jobs (JointBatches). Empty: of one.
  std::vector<int64_t> part_targets;
};

}  // namespace weft::engine
