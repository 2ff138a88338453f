#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/check.h"
#include "worker/engine/growth/decoder_testing.h"
#include "worker/engine/growth/encoder_testing.h"
#include "worker/engine/testing/encoder_batches.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {

/// Images, masked tokens or tokens, as a network reads them.
inline Batch BatchFor(const ModelSpec& model) {
  if (model.family == "vit") return *NoiseImages(model).Get(0, 0, 3);
  if (model.classes > 0) return *RandomLabelled(model.vocab_size, 16, model.classes).Get(0, 0, 3);
  if (model.family == "bert") return *RandomMasked(model.vocab_size, 16, 0.5).Get(0, 0, 2);
  return *RandomTokens(model.vocab_size, 16).Get(0, 0, 2);
}

/// Gives the engine's network these numbers.
inline void SetValues(TinyRun& run, const TensorsByName& tensors) {
  ParameterSet& parameters = run.model->parameters();
  for (int64_t i = 0; i < parameters.size(); ++i) {
    const std::vector<double>& values = tensors.at(parameters[i].name);
    std::copy(values.begin(), values.end(), parameters.value(i).As<float>());
  }
  WEFT_CHECK(run.model->Pack(run.context).ok(), "pack");
}

/// The largest difference, as a share of the largest number of `truth`. Not a number, which is
/// neither less nor more than a limit, where one of `numbers` is not finite or sizes differ.
template <class Numbers, class Truth>
double Distance(const Numbers& numbers, const Truth& truth) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  if (numbers.size() != truth.size()) return kNone;
  double difference = 0, largest = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    if (!std::isfinite(numbers[i])) return kNone;
    const double expected = truth[i];
    difference = std::max(difference, std::abs(numbers[i] - expected));
    largest = std::max(largest, std::abs(expected));
  }
  return difference / largest;
}

namespace float64 {

/// Logits of BatchFor(model), row after row. Otherwise as Network.
inline Row LogitsOf(const ModelSpec& model, const TensorsByName& tensors,
                    std::optional<MaskedGrowth> growth = std::nullopt, int64_t step = 0) {
  const Batch batch = BatchFor(model);
  const bool encodes = model.family == "bert" || model.family == "vit";
  const Rows rows = encodes ? Encoder(model, tensors, std::move(growth), step).Logits(batch)
                            : Decoder(model, tensors, std::move(growth), step).Logits(batch);
  Row flat;
  for (const Row& row : rows) flat.insert(flat.end(), row.begin(), row.end());
  return flat;
}

}  // namespace float64
}  // namespace weft::engine
