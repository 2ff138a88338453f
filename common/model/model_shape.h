#pragma once

#include <cstdint>

#include "common/spec/job_spec.h"

namespace weft {

/// Rows of the token embedding are stored and multiplied in whole tiles of this many.
inline constexpr int64_t kVocabularyTile = 64;

/// Sizes of a GPT-2 network with every default resolved.
struct ModelShape {
  int64_t layers = 0;
  int64_t width = 0;
  int64_t heads = 0;
  int64_t mlp_width = 0;
  int64_t vocab_size = 0;
  int64_t context = 0;

  /// Rows of the embedding table in memory.
  int64_t PaddedVocabulary() const {
    return (vocab_size + kVocabularyTile - 1) / kVocabularyTile * kVocabularyTile;
  }
};

/// The sizes `job` asks for. An unset model.vocab_size is that of the tokenizer that the job
/// trains, in whole tiles; where it brings its own tokenizer, whose size only its file says, that
/// of GPT-2 (50,304) is assumed. Sizes of an imported model must have been put into job.model
/// before.
ModelShape ShapeOf(const JobSpec& job);

}  // namespace weft
