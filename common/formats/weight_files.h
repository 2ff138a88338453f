#pragma once

#include <string>
#include <string_view>

#include "common/env.h"
#include "common/status.h"

namespace weft {

/// Whether a file is what git-lfs leaves in the place of a large file that was not fetched.
bool IsGitLfsPointer(std::string_view content);

/// The error for `folder` lacking `wanted`. kNotFound: there is no such folder. kInvalid: there is;
/// the message says which other known form of weights it holds (PyTorch pickles, shards without
/// index, a LoRA adapter, GGUF, ...) and, after "hint:", how to convert them.
Status MissingFileError(Env& env, const std::string& folder, const std::string& wanted);

}  // namespace weft
