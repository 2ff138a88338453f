#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "worker/engine/models/language_model.h"

namespace weft::engine {

/// How the next token is drawn. Ties go to the lower token.
struct SamplingOptions {
  double temperature = 1.0;  ///< 0: always the most probable token.
  int64_t top_k = 0;         ///< Draw among this many most probable tokens; 0: all.
  double top_p = 1.0;        ///< Draw among the fewest tokens that hold this probability.
  uint64_t seed = 0;
};

/// Draws a token from `logits`; draw number `index` of the stream of options.seed.
int32_t SampleToken(const std::vector<float>& logits, const SamplingOptions& options,
                    uint64_t index);

struct GenerateOptions {
  SamplingOptions sampling;
  int64_t max_new_tokens = 100;
  int32_t stop_token = -1;  ///< Ends the text, and is part of it; -1: none.

  /// Called with each new token; false ends the text. May be empty.
  std::function<bool(int32_t token)> on_token = {};
  /// A network of the same vocabulary whose logits are added to the model's, or none.
  const LanguageModel* base = nullptr;
};

/// The tokens that follow `prompt`, decoded one by one with cached keys and values, until one of
/// the options says stop or a network's context is full. kInvalid for an empty prompt, one longer
/// than the context, a token outside the vocabulary, or options out of range.
Result<std::vector<int32_t>> Generate(Context& context, const LanguageModel& model,
                                      const std::vector<int32_t>& prompt,
                                      const GenerateOptions& options);

}  // namespace weft::engine
