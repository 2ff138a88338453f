#pragma once

#include <string>

#include "common/env.h"
#include "common/status.h"

namespace weft {

/// The error for `folder` lacking `wanted`. kNotFound: there is no such folder. kInvalid: there is;
/// the message says which other known form of weights it holds (PyTorch pickles, shards without
/// index, a LoRA adapter, GGUF, ...) and, after "hint:", how to convert them.
Status MissingFileError(Env& env, const std::string& folder, const std::string& wanted);

/// Whether there are weights in the folder, in a form that is read or in another known one. An
/// index alone is no weights: its shards may be on other machines.
bool HoldsWeights(Env& env, const std::string& folder);

/// `status` of reading weights that the user gave: damage (kCorrupt) is kInvalid, because no retry
/// mends them, with a hint; all else as it is.
Status OfGivenFiles(Status status);

/// Content hash of the names and the bytes of the weight files in `folder`, which shows whether
/// they have changed. Faster than a hash of their values.
Result<std::string> FingerprintOfWeights(Env& env, const std::string& folder);

}  // namespace weft
