#pragma once

#include <vector>

#include "common/formats/documents.h"
#include "common/formats/tokenizer.h"
#include "worker/engine/data/token_shard.h"

namespace weft::engine {

/// Encodes all documents in order, each followed by the end-of-text token, on `threads` threads.
/// Long texts are shared out in parts, so that one big file keeps all threads busy. Of several
/// errors the first in the order of the documents is returned.
Status EncodeDocuments(const std::vector<DocumentFile>& files, const Tokenizer& tokenizer,
                       int32_t end_of_text, int threads, TokenShardWriter& out);

}  // namespace weft::engine
