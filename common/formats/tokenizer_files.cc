#include "common/formats/tokenizer_files.h"

#include <span>
#include <utility>

#include "common/hash.h"

namespace weft {

Status WriteTokenizerFiles(Env& env, const std::string& folder,
                           const std::vector<TokenizerFile>& files) {
  for (const TokenizerFile& file : files) {
    WEFT_RETURN_IF_ERROR(WriteFileAtomic(env, JoinPath(folder, file.name), file.content));
  }
  return OkStatus();
}

Result<std::vector<TokenizerFile>> ReadTokenizerFiles(Env& env, const std::string& main) {
  std::vector<TokenizerFile> files;
  WEFT_ASSIGN_OR_RETURN(std::string content, ReadFile(env, main));
  files.push_back({BaseName(main), std::move(content)});
  for (const char* name : {"tokenizer_config.json", "generation_config.json"}) {
    const std::string path = JoinPath(DirName(main), name);
    if (!env.FileExists(path)) continue;
    WEFT_ASSIGN_OR_RETURN(std::string text, ReadFile(env, path));
    files.push_back({name, std::move(text)});
  }
  return files;
}

std::string HashOfTokenizerFiles(const std::vector<TokenizerFile>& files) {
  if (files.size() == 1) return HashHex(std::as_bytes(std::span(files[0].content)));
  std::string all;
  for (const TokenizerFile& file : files) {
    all += file.name + '\n' + HashHex(std::as_bytes(std::span(file.content))) + '\n';
  }
  return HashHex(std::as_bytes(std::span(all)));
}

}  // namespace weft
