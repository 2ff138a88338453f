#pragma once

#include <string>
#include <vector>

#include "common/formats/documents.h"
#include "common/formats/sequence_form.h"
#include "common/formats/tokenizer.h"
#include "worker/engine/data/instruction_encoder.h"
#include "worker/engine/data/token_shard.h"

namespace weft::engine {

/// A document of one of several files.
struct DocumentPlace {
  const DocumentFile* file = nullptr;
  size_t index = 0;
};

/// How documents become tokens.
struct EncodeOptions {
  SequenceForm form;        ///< Tokens around each text, or two texts where it has a middle.
  bool keep_empty = false;  ///< Empty documents stay, as one of the form's tokens alone.
  SpecialTokens special = SpecialTokens::kAsText;
  int threads = 1;
  const InstructionEncoder* instruction = nullptr;  ///< Encodes in place of form and special.
};

/// Special tokens that texts spell out, whatever became of them.
struct SpelledSpecialTokens {
  uint64_t count = 0;
  std::string example;  ///< The first of them.
};

/// Encodes documents in the order given, and writes to `answers`, unless it is null, for each token
/// whether it belongs to an answer, by the options' InstructionEncoder. Long texts are split into
/// parts, so that one big file keeps all threads busy. Of several errors the first in the order of
/// the documents is returned.
Result<SpelledSpecialTokens> EncodeDocuments(const std::vector<DocumentPlace>& documents,
                                             const Tokenizer& tokenizer,
                                             const EncodeOptions& options, TokenShardWriter& out,
                                             TokenShardWriter* answers = nullptr);

}  // namespace weft::engine
