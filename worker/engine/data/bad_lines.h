#pragma once

#include <string>
#include <vector>

#include "common/formats/documents.h"
#include "worker/engine/data/instruction_encoder.h"

namespace weft::engine {

/// Documents that were left out because they cannot be used.
struct SkippedLines {
  int64_t count = 0;
  std::string first;  ///< Why the first was, with its file and line.
};

/// Reads every document on `threads` threads, removes those that DocumentFile::Read refuses from
/// `files`, or that `instruction`, if it is not null, cannot encode, and adds them to `skipped`.
void SkipBadLines(std::vector<DocumentFile>& files, int threads,
                  const InstructionEncoder* instruction, SkippedLines& skipped);

}  // namespace weft::engine
