#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/spec/data_spec.h"

namespace weft::engine {

/// What masking needs to know of the tokenizer.
struct MaskingVocabulary {
  int32_t mask_token = 0;
  int32_t size = 0;
  std::vector<int32_t> special_tokens = {};  ///< Never predicted and never put in for another.
};

/// Hides tokens of a sequence and asks for them (BERT: Devlin et al. 2019, arXiv 1810.04805; anew
/// in each epoch: RoBERTa, Liu et al. 2019, arXiv 1907.11692). Every token that is not special is
/// picked with `probability`; of these a share becomes the mask token, a share a random ordinary
/// token, and the rest stays. A sequence without a picked token gets the one that came
/// closest, so that every sequence teaches something. Immutable, so thread-safe.
class TokenMasker {
 public:
  TokenMasker(const MaskingSpec& spec, const MaskingVocabulary& vocabulary, uint64_t seed);

  /// Masks `tokens` in place; `targets`, as long, gets the original token where one was picked and
  /// kernels::kIgnoreTarget elsewhere. Depends only on the seed, `epoch`, `sequence` and the
  /// tokens.
  void Mask(uint64_t sequence, uint32_t epoch, std::span<int32_t> tokens,
            std::span<int32_t> targets) const;

 private:
  MaskingSpec spec_;
  int32_t mask_token_;
  std::vector<bool> special_;      ///< By token.
  std::vector<int32_t> ordinary_;  ///< All other tokens.
  uint64_t seed_;
};

}  // namespace weft::engine
