#include "common/model/model_counts.h"

#include <algorithm>

namespace weft {

ParameterCounts CountParameters(const ModelShape& shape) {
  const int64_t c = shape.width, f = shape.mlp_width;
  ParameterCounts counts;
  counts.token_embedding = shape.vocab_size * c;
  counts.position_embedding = shape.context * c;
  counts.attention = shape.layers * ((3 * c * c + 3 * c) + (c * c + c));
  counts.mlp = shape.layers * ((c * f + f) + (f * c + c));
  counts.norms = shape.layers * 4 * c + 2 * c;
  return counts;
}

double ForwardFlopsPerToken(const ModelShape& shape, int64_t sequence_length) {
  const auto parameters = static_cast<double>(CountParameters(shape).Total());
  const double attention = static_cast<double>(shape.layers) * static_cast<double>(shape.width) *
                           static_cast<double>(sequence_length);
  return 2.0 * parameters + 2.0 * attention;
}

double TrainingFlopsPerToken(const ModelShape& shape, int64_t sequence_length) {
  return 3.0 * ForwardFlopsPerToken(shape, sequence_length);
}

int64_t LogitsChunkRows(const ModelShape& shape, int64_t tokens, int64_t element_bytes) {
  constexpr int64_t kChunkBytes = int64_t{64} << 20;
  constexpr int64_t kTile = 32;
  const int64_t fitting =
      std::max<int64_t>(kChunkBytes / (shape.PaddedVocabulary() * element_bytes), kTile);
  const int64_t chunks = (tokens + fitting - 1) / fitting;
  const int64_t even = (tokens + chunks - 1) / chunks;
  return (even + kTile - 1) / kTile * kTile;
}

std::vector<Gemm> WeightGemms(const ModelShape& shape, int64_t tokens, int64_t element_bytes) {
  std::vector<Gemm> gemms;
  // y [rows, out] = x [rows, in] Wᵀ and the two gradients of it.
  auto add = [&](std::string_view name, int64_t rows, int64_t in, int64_t out, int64_t count) {
    gemms.push_back({name, GemmPass::kForward, rows, out, in, count});
    gemms.push_back({name, GemmPass::kInputGradient, rows, in, out, count});
    gemms.push_back({name, GemmPass::kWeightGradient, out, in, rows, count});
  };
  const int64_t c = shape.width, f = shape.mlp_width;
  add("qkv", tokens, c, 3 * c, shape.layers);
  add("attention output", tokens, c, c, shape.layers);
  add("mlp up", tokens, c, f, shape.layers);
  add("mlp down", tokens, f, c, shape.layers);
  const int64_t chunk = std::min(LogitsChunkRows(shape, tokens, element_bytes), tokens);
  add("classifier", chunk, c, shape.PaddedVocabulary(), tokens / chunk);
  if (tokens % chunk != 0) add("classifier", tokens % chunk, c, shape.PaddedVocabulary(), 1);
  return gemms;
}

}  // namespace weft
