#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/formats/documents.h"
#include "common/formats/tokenizer.h"

namespace weft {

/// Trains a byte-level BPE tokenizer (BpeTrainer) on the documents of some files. Errors of the
/// documents are those of DocumentFile. `special`: more special tokens,
/// which come last.
Result<Tokenizer> TrainTokenizer(const std::vector<DocumentFile>& files, int64_t vocab_size,
                                 const std::vector<std::string>& special = {});

/// The same of the files of these names, written to `output_folder`/tokenizer.json; the folder is
/// made when it is missing.
Result<Tokenizer> TrainTokenizerToFolder(Env& env, const std::vector<std::string>& files,
                                         const DocumentOptions& options, int64_t vocab_size,
                                         const std::string& output_folder);

}  // namespace weft
