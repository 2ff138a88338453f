#pragma once

#include <string>
#include <vector>

#include "common/formats/documents.h"

namespace weft::engine {

/// Documents that were left out because they cannot be used.
struct SkippedLines {
  int64_t count = 0;
  std::string first;  ///< Why the first was, with its file and line.
};

/// Reads every document on `threads` threads, removes those that DocumentFile::Read refuses from
/// `files` and adds them to `skipped`.
void SkipBadLines(std::vector<DocumentFile>& files, int threads, SkippedLines& skipped);

}  // namespace weft::engine
