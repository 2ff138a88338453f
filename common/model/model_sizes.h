#pragma once

#include <cstdint>
#include <string>

#include "common/number.h"
#include "common/spec/model_family.h"

namespace weft {

/// Rows of the token embedding are stored and multiplied in whole tiles of this many.
inline constexpr int64_t kVocabularyTile = 64;

/// Rows of a table of `vocab_size` tokens in memory.
inline int64_t PaddedVocabulary(int64_t vocab_size) {
  return RoundUp(vocab_size, kVocabularyTile);
}

// Sizes with the defaults of ModelSpec resolved; MlpWidth is declared next to it.

inline int64_t HeadWidth(const ModelSpec& model) {
  return model.head_width > 0 ? model.head_width : model.width / model.heads;
}

inline int64_t KvHeads(const ModelSpec& model) {
  return model.kv_heads > 0 ? model.kv_heads : model.heads;
}

/// Columns of the queries, and of what attention computes.
inline int64_t QueryWidth(const ModelSpec& model) {
  return model.heads * HeadWidth(model);
}

/// Columns of the keys, and of the values.
inline int64_t KvWidth(const ModelSpec& model) {
  return KvHeads(model) * HeadWidth(model);
}

/// Columns of queries, keys and values together.
inline int64_t QkvWidth(const ModelSpec& model) {
  return QueryWidth(model) + 2 * KvWidth(model);
}

/// Blocks with parameters of their own.
inline int64_t DistinctBlocks(const ModelSpec& model) {
  return model.distinct_blocks > 0 ? model.distinct_blocks : model.layers;
}

/// Which of the distinct blocks layer `layer` uses.
inline int64_t BlockOfLayer(const ModelSpec& model, int64_t layer) {
  return layer / (model.layers / DistinctBlocks(model));
}

/// Whether the token embedding is narrower than the network and projected to it.
inline bool FactorisedEmbedding(const ModelSpec& model) {
  return model.embedding_width > 0;
}

/// Columns of the token and position tables.
inline int64_t EmbeddingWidth(const ModelSpec& model) {
  return FactorisedEmbedding(model) ? model.embedding_width : model.width;
}

/// Matrices between the residual stream and the inside of the MLP: gate and up, or one.
inline int64_t MlpInputs(const ModelSpec& model) {
  return model.family == "llama" ? 2 : 1;
}

/// Number of segment kinds that a bert distinguishes.
inline int64_t TokenTypes(const ModelSpec& model) {
  return model.token_types > 0 ? model.token_types : 2;
}

/// Numbers of a patch.
inline int64_t PatchPixels(const ModelSpec& model) {
  return model.image_channels * model.patch_size * model.patch_size;
}

}  // namespace weft
