#pragma once

#include <string>

#include "common/env.h"
#include "common/spec/job_spec.h"
#include "worker/engine/data/dataset.h"

namespace weft::engine {

/// Turns the files of a job into token shards, or finds the shards of an earlier run: a folder
/// under `cache_dir` named after the content of the files, the tokenizer and the options.
///
/// Language models: each document is followed by the tokenizer's end-of-text token. Masked language
/// models and classification: it has the tokenizer's form. Without a tokenizer one is trained
/// on the training files. Images: the bytes of each, at the model's size, are a document.
/// Labelled documents are put in a fixed scattered order.
///
/// Held out for validation, when no files are given for it, is the end: from the start of a
/// document when that leaves about the share asked for (half to twice of it) or documents are
/// labelled, else from within one. The result does not depend on `threads`, and any number of
/// processes may prepare the same dataset at once: one does, the others wait.
///
/// Errors: those of DocumentFile, TokenFile, DecodeImage and Tokenizer; kInvalid for a tokenizer
/// that lacks a token the job needs, or files that the model cannot learn from.
Result<Dataset> PrepareDataset(Env& env, const JobSpec& job, const std::string& cache_dir,
                               int threads);

}  // namespace weft::engine
