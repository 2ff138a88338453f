#pragma once

#include <string>

#include "common/env.h"
#include "common/spec/job_spec.h"
#include "worker/engine/data/dataset.h"

namespace weft::engine {

/// Turns the files of a job into token shards, or finds the shards of an earlier run: a folder
/// under `cache_dir` named after the content of the files, the tokenizer and the options. The text
/// of each document is followed by the tokenizer's end-of-text token. Without a tokenizer one is
/// trained on the training files. Held out for validation, when no files are given for it, is the
/// end of the training tokens: from the start of a document when that leaves about the share asked
/// for (half to twice of it), else from within one. The result does not depend on `threads`, and
/// any number of processes may prepare the same dataset at once: one does, the others wait.
///
/// Errors: those of DocumentFile and Tokenizer; kInvalid for a tokenizer without end of text.
Result<Dataset> PrepareDataset(Env& env, const DataSpec& data, const std::string& cache_dir,
                               int threads);

}  // namespace weft::engine
