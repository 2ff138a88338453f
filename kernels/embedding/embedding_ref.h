#pragma once

#include <cstdint>
#include <vector>

namespace weft::kernels::ref {

/// Float64 out[t] = token_table[tokens[t]] + position_table[positions[t]]; no positions, no second
/// term.
inline std::vector<double> Embedding(const std::vector<int32_t>& tokens,
                                     const std::vector<int32_t>& positions,
                                     const std::vector<double>& token_table,
                                     const std::vector<double>& position_table, int64_t width) {
  std::vector<double> out(tokens.size() * width);
  for (size_t t = 0; t < tokens.size(); ++t) {
    for (int64_t c = 0; c < width; ++c) {
      out[t * width + c] = token_table[tokens[t] * width + c];
      if (!positions.empty()) out[t * width + c] += position_table[positions[t] * width + c];
    }
  }
  return out;
}

/// Adds each row of dout to the row of `dtable` that its index names.
inline void EmbeddingBackward(const std::vector<int32_t>& indices, const std::vector<double>& dout,
                              int64_t width, std::vector<double>& dtable) {
  for (size_t t = 0; t < indices.size(); ++t) {
    for (int64_t c = 0; c < width; ++c) dtable[indices[t] * width + c] += dout[t * width + c];
  }
}

}  // namespace weft::kernels::ref
