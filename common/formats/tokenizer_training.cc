#include "common/formats/tokenizer_training.h"

#include <utility>

#include "common/formats/bpe_trainer.h"

namespace weft {

Result<Tokenizer> TrainTokenizer(const std::vector<DocumentFile>& files, int64_t vocab_size,
                                 const std::vector<std::string>& special) {
  BpeTrainer trainer;
  std::string scratch;
  for (const DocumentFile& file : files) {
    for (size_t i = 0; i < file.size(); ++i) {
      WEFT_ASSIGN_OR_RETURN(std::string_view text, file.Text(i, scratch));
      trainer.Add(text);
    }
  }
  WEFT_ASSIGN_OR_RETURN(TokenizerDefinition definition,
                        trainer.Train(vocab_size - static_cast<int64_t>(special.size())));
  for (const std::string& token : special) {
    const int32_t last = definition.added.back().id;
    definition.added.push_back({.id = last + 1, .content = token, .special = true});
  }
  return Tokenizer::Create(std::move(definition));
}

Result<Tokenizer> TrainTokenizerToFolder(Env& env, const std::vector<std::string>& files,
                                         const DocumentOptions& options, int64_t vocab_size,
                                         const std::string& output_folder) {
  std::vector<DocumentFile> opened;
  for (const std::string& path : files) {
    WEFT_ASSIGN_OR_RETURN(DocumentFile file, DocumentFile::Open(env, path, options));
    opened.push_back(std::move(file));
  }
  WEFT_ASSIGN_OR_RETURN(Tokenizer tokenizer, TrainTokenizer(opened, vocab_size));
  WEFT_RETURN_IF_ERROR(env.CreateDirs(output_folder));
  WEFT_RETURN_IF_ERROR(WriteTokenizerFiles(env, output_folder, tokenizer.files()));
  return tokenizer;
}

}  // namespace weft
