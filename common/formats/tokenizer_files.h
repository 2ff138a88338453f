#pragma once

#include <string>
#include <vector>

#include "common/env.h"
#include "common/status.h"

namespace weft {

/// A file of a tokenizer, by its name in the folder.
struct TokenizerFile {
  std::string name;
  std::string content;
};

/// Writes them into a folder.
Status WriteTokenizerFiles(Env& env, const std::string& folder,
                           const std::vector<TokenizerFile>& files);

/// Reads what WriteTokenizerFiles wrote: the file `main`, and the tokenizer_config.json and
/// generation_config.json next to it.
Result<std::vector<TokenizerFile>> ReadTokenizerFiles(Env& env, const std::string& main);

/// ContentHash of one file, or of several with their names.
std::string HashOfTokenizerFiles(const std::vector<TokenizerFile>& files);

}  // namespace weft
