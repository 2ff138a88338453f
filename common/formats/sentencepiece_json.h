#pragma once

#include "common/formats/sentencepiece_file.h"
#include "common/json.h"

namespace weft {

/// The tokenizer.json that encodes as a SentencePiece model does, for programs that read no other
/// form: Unigram or BPE over the same pieces, and its normalization. User-defined pieces are no
/// added tokens there: a text between such would get a prefix of its own. Differences remain where
/// a text spells control or byte pieces, which tokenizer.json has no way to hide.
Json SentencePieceJson(const SentencePieceFile& file);

}  // namespace weft
