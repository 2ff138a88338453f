#pragma once

#include <string_view>

#include "common/formats/tokenizer_config.h"
#include "common/formats/tokenizer_json.h"
#include "common/status.h"

namespace weft {

/// Reads the two files of GPT-2's release: vocab.json (token to id) and merges.txt, for the class
/// of tokenizers that the config names: GPT-2's where it names none, Qwen2's (its pattern and NFC)
/// or RoBERTa's (its tokens around texts). "<|endoftext|>" becomes a special token when the
/// vocabulary has it. kInvalid: a malformed file, or another class.
Result<TokenizerDefinition> ParseVocabAndMerges(std::string_view vocab_json,
                                                std::string_view merges_text,
                                                const TokenizerConfig& config = {});

}  // namespace weft
