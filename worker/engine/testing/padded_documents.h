#pragma once

#include <algorithm>
#include <cstdint>

#include "common/number.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {

/// Documents of uniform random tokens, a row each with padding behind it; their lengths are spread
/// from two tokens up to `length`, and two that follow each other differ by a part of it. As
/// TokenLoader pads: to `length` or, with a `multiple`, to the longest row of those that are asked
/// for together, rounded up to that.
class PaddedDocuments : public BatchSource {
 public:
  PaddedDocuments(int64_t vocabulary, int64_t length, int64_t multiple = 0,
                  int32_t padding_token = 0)
      : tokens_(vocabulary, length),
        length_(length),
        multiple_(multiple),
        padding_token_(padding_token) {}

  int64_t Sequences() const override { return tokens_.Sequences(); }
  Result<Batch> Get(int64_t step, int64_t first_sequence, int64_t count) override {
    Batch batch;
    int64_t longest = 0;
    for (int64_t s = first_sequence; s < first_sequence + count; ++s) {
      batch.lengths.push_back(LengthOf(step, s));
      longest = std::max<int64_t>(longest, batch.lengths.back());
    }
    batch.sequences = count;
    batch.length = multiple_ == 0 ? length_ : std::min(RoundUp(longest, multiple_), length_);
    batch.stride = length_;
    for (int64_t row = 0; row < count; ++row) {
      WEFT_ASSIGN_OR_RETURN(const Batch whole, tokens_.Get(step, first_sequence + row, 1));
      Append(whole, batch.lengths[static_cast<size_t>(row)], batch);
    }
    batch.sequence_starts.push_back(static_cast<int32_t>(batch.tokens.size()));
    return batch;
  }

 private:
  static constexpr int64_t kShortest = 2;  // with something to predict

  int32_t LengthOf(int64_t step, int64_t sequence) const {
    constexpr int64_t kParts = 16;
    const int64_t parts = 7 * step + sequence / 2 * 5 + sequence % 2 * 3;
    const int64_t choices = length_ - kShortest + 1;
    return static_cast<int32_t>(kShortest + parts * length_ / kParts % choices);
  }

  void Append(const Batch& whole, int32_t own, Batch& batch) const {
    const auto first = static_cast<int32_t>(batch.tokens.size());
    const auto length = static_cast<int32_t>(batch.length);
    batch.sequence_starts.push_back(first);
    if (own < length) batch.sequence_starts.push_back(first + own);
    for (int32_t t = 0; t < length; ++t) {
      const auto at = static_cast<size_t>(t);
      batch.tokens.push_back(t < own ? whole.tokens[at] : padding_token_);
      batch.targets.push_back(t + 1 < own ? whole.targets[at] : kernels::kIgnoreTarget);
      batch.positions.push_back(t < own ? t : t - own);
    }
    batch.padding_tokens += length - own;
    batch.target_count += own - 1;
  }

  RandomTokens tokens_;
  int64_t length_;
  int64_t multiple_;
  int32_t padding_token_;
};

}  // namespace weft::engine
