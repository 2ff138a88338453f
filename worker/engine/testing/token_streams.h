#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/rng.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "worker/engine/data/batch_source.h"

namespace weft::engine {

/// A batch of sequences of `length` tokens each cut from `stream` (length + 1 tokens apart), every
/// position with its next token as target.
inline Batch BatchOf(const std::vector<int32_t>& stream, int64_t length) {
  Batch batch;
  batch.length = length;
  batch.sequences = static_cast<int64_t>(stream.size()) / (length + 1);
  for (int64_t s = 0; s < batch.sequences; ++s) {
    batch.sequence_starts.push_back(static_cast<int32_t>(s * length));
    for (int64_t t = 0; t < length; ++t) {
      batch.tokens.push_back(stream[s * (length + 1) + t]);
      batch.targets.push_back(stream[s * (length + 1) + t + 1]);
      batch.positions.push_back(static_cast<int32_t>(t));
    }
  }
  batch.sequence_starts.push_back(static_cast<int32_t>(batch.sequences * length));
  batch.target_count = batch.sequences * length;
  return batch;
}

/// Uniform random tokens; the same for the same seed, step and sequence.
class RandomTokens : public BatchSource {
 public:
  RandomTokens(int64_t vocabulary, int64_t length, uint64_t seed = 7)
      : vocabulary_(vocabulary), length_(length), seed_(seed) {}

  int64_t Sequences() const override { return 1000; }
  Result<Batch> Get(int64_t step, int64_t first_sequence, int64_t count) override {
    std::vector<int32_t> stream;
    for (int64_t s = first_sequence; s < first_sequence + count; ++s) {
      PhiloxStream random(PhiloxKey{seed_, static_cast<uint32_t>(step), static_cast<uint32_t>(s)});
      for (int64_t t = 0; t <= length_; ++t) {
        stream.push_back(static_cast<int32_t>(random.Below(static_cast<uint64_t>(vocabulary_))));
      }
    }
    return BatchOf(stream, length_);
  }

 private:
  int64_t vocabulary_;
  int64_t length_;
  uint64_t seed_;
};

/// Preference pairs of random tokens: a prompt of half the length, and two answers to it.
class RandomPairs : public BatchSource {
 public:
  RandomPairs(int64_t vocabulary, int64_t length, int64_t pairs, int64_t global_batch)
      : vocabulary_(vocabulary), length_(length), pairs_(pairs), global_batch_(global_batch) {}

  int64_t Sequences() const override { return 2 * pairs_; }
  Result<Batch> Get(int64_t step, int64_t first_sequence, int64_t count) override {
    std::vector<int32_t> stream, indices;
    for (int64_t s = first_sequence; s < first_sequence + count; ++s) {
      const int64_t index = (step * global_batch_ + s) % Sequences();
      indices.push_back(static_cast<int32_t>(index));
      Append(index / 2, length_ / 2, stream);
      Append(pairs_ + index, length_ + 1 - length_ / 2, stream);
    }
    Batch batch = BatchOf(stream, length_);
    for (size_t row = 0; row < batch.targets.size(); ++row) {
      const bool asks = static_cast<int64_t>(row) % length_ + 1 < length_ / 2;
      if (asks) batch.targets[row] = kernels::kIgnoreTarget;
    }
    batch.sequence_indices = std::move(indices);
    batch.target_count = count;
    return batch;
  }

 private:
  void Append(int64_t text, int64_t count, std::vector<int32_t>& stream) const {
    PhiloxStream random(PhiloxKey{7, 0, static_cast<uint32_t>(text)});
    for (int64_t t = 0; t < count; ++t) {
      stream.push_back(static_cast<int32_t>(random.Below(static_cast<uint64_t>(vocabulary_))));
    }
  }

  int64_t vocabulary_;
  int64_t length_;
  int64_t pairs_;
  int64_t global_batch_;
};

/// 0 1 2 ... period-1 0 1 2 ..., each sequence starting elsewhere: learnt within some steps.
class CountingTokens : public BatchSource {
 public:
  CountingTokens(int64_t period, int64_t length) : period_(period), length_(length) {}

  int64_t Sequences() const override { return period_; }
  Result<Batch> Get(int64_t step, int64_t first_sequence, int64_t count) override {
    std::vector<int32_t> stream;
    for (int64_t s = first_sequence; s < first_sequence + count; ++s) {
      for (int64_t t = 0; t <= length_; ++t) {
        stream.push_back(static_cast<int32_t>((step + s + t) % period_));
      }
    }
    return BatchOf(stream, length_);
  }

 private:
  int64_t period_;
  int64_t length_;
};

}  // namespace weft::engine
