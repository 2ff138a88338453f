#pragma once

#include <string_view>

#include "common/formats/tokenizer_json.h"
#include "common/status.h"

namespace weft {

/// Whether a file looks like one of tiktoken: its first line is base64, a space and a number.
bool LooksLikeTiktoken(std::string_view text);

/// Reads a tiktoken file as Llama 3 has it: lines of a token's bytes in base64, a space and its
/// rank, which is its id and its priority in merging. Merges are all pairs of tokens that make up a
/// token. After the ranks come the 256 special tokens of Llama 3, <|begin_of_text|> first. kInvalid
/// names the line that is malformed.
Result<TokenizerDefinition> ParseTiktoken(std::string_view text);

}  // namespace weft
