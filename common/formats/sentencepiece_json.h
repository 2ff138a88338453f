#pragma once

#include <string_view>

#include "common/json.h"
#include "common/status.h"

namespace weft {

/// The tokenizer.json that encodes as a SentencePiece .model does, for programs that read no other
/// form: Unigram or BPE over the same pieces, and its normalization. Differences remain where a
/// text spells control or byte pieces, which tokenizer.json has no way to hide. Errors as
/// ParseSentencePiece.
Result<Json> SentencePieceJson(std::string_view model);

}  // namespace weft
