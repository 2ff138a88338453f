#pragma once

#include <cmath>
#include <cstdint>

#include "common/model/model_sizes.h"
#include "common/rng.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {

/// Uniform random tokens; every 1 / share-th of a batch is to be predicted.
class RandomMasked : public BatchSource {
 public:
  RandomMasked(int64_t vocabulary, int64_t length, double share)
      : tokens_(vocabulary, length), share_(share) {}

  int64_t Sequences() const override { return tokens_.Sequences(); }
  Result<Batch> Get(int64_t step, int64_t first_sequence, int64_t count) override {
    WEFT_ASSIGN_OR_RETURN(Batch batch, tokens_.Get(step, first_sequence, count));
    for (size_t i = 0; i < batch.targets.size(); ++i) {
      const auto before = std::llround(share_ * static_cast<double>(i));
      if (std::llround(share_ * static_cast<double>(i + 1)) > before) {
        batch.target_rows.push_back(static_cast<int32_t>(i));
      } else {
        batch.targets[i] = kernels::kIgnoreTarget;
      }
    }
    batch.target_count = static_cast<int64_t>(batch.target_rows.size());
    return batch;
  }

 private:
  RandomTokens tokens_;
  double share_;
};

/// Uniform random tokens with a random class for each sequence.
class RandomLabelled : public BatchSource {
 public:
  RandomLabelled(int64_t vocabulary, int64_t length, int64_t classes)
      : tokens_(vocabulary, length), classes_(classes) {}

  int64_t Sequences() const override { return tokens_.Sequences(); }
  Result<Batch> Get(int64_t step, int64_t first_sequence, int64_t count) override {
    WEFT_ASSIGN_OR_RETURN(Batch batch, tokens_.Get(step, first_sequence, count));
    for (int64_t s = 0; s < count; ++s) {
      batch.labels.push_back(static_cast<int32_t>((step + first_sequence + s) % classes_));
    }
    batch.targets.clear();
    batch.target_count = count;
    return batch;
  }

 private:
  RandomTokens tokens_;
  int64_t classes_;
};

/// Images of noise in the shape that `model`, a vit, reads, each of a class that its
/// brightness gives: learnt within some steps.
class NoiseImages : public BatchSource {
 public:
  explicit NoiseImages(const ModelSpec& model) : model_(model) {}

  int64_t Sequences() const override { return 1000; }
  Result<Batch> Get(int64_t step, int64_t first_sequence, int64_t count) override {
    Batch batch;
    batch.sequences = count;
    batch.length = ImagePatches(model_) + 1;
    const int64_t numbers = ImagePatches(model_) * PatchPixels(model_);
    for (int64_t s = 0; s < count; ++s) {
      PhiloxStream random(
          PhiloxKey{9, static_cast<uint32_t>(step), static_cast<uint32_t>(first_sequence + s)});
      const auto label = static_cast<int32_t>((step + first_sequence + s) % model_.classes);
      for (int64_t i = 0; i < numbers; ++i) {
        const auto noise = static_cast<float>(random.Below(1000)) / 1000;
        batch.pixels.push_back(static_cast<float>(label) + noise);
      }
      batch.labels.push_back(label);
      batch.sequence_starts.push_back(static_cast<int32_t>(s * batch.length));
      for (int64_t t = 0; t < batch.length; ++t) {
        batch.positions.push_back(static_cast<int32_t>(t));
      }
    }
    batch.sequence_starts.push_back(static_cast<int32_t>(count * batch.length));
    batch.target_count = count;
    return batch;
  }

 private:
  ModelSpec model_;
};

}  // namespace weft::engine
