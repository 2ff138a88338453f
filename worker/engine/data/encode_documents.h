#pragma once

#include <vector>

#include "common/formats/documents.h"
#include "common/formats/sequence_form.h"
#include "common/formats/tokenizer.h"
#include "worker/engine/data/token_shard.h"

namespace weft::engine {

/// A document of one of several files.
struct DocumentPlace {
  const DocumentFile* file = nullptr;
  size_t index = 0;
};

/// Encodes documents in the order given, each with the tokens of `form` around its text, or two
/// texts where the form has a middle, on `threads` threads. Long texts are shared out in parts, so
/// that one big file keeps all threads busy. Empty documents are left out unless `keep_empty`. Of
/// several errors the first in the order of the documents is returned.
Status EncodeDocuments(const std::vector<DocumentPlace>& documents, const Tokenizer& tokenizer,
                       const SequenceForm& form, bool keep_empty, int threads,
                       TokenShardWriter& out);

}  // namespace weft::engine
