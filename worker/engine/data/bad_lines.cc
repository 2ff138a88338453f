#include "worker/engine/data/bad_lines.h"

#include <algorithm>
#include <atomic>
#include <thread>

namespace weft::engine {
namespace {

constexpr size_t kAtOnce = 1024;  ///< Documents that a thread takes at a time.

/// Why a document cannot be used.
Status Check(const DocumentFile& file, size_t i, const InstructionEncoder* instruction) {
  DocumentContent content;
  WEFT_RETURN_IF_ERROR(file.Read(i, content));
  if (instruction == nullptr) return OkStatus();
  std::vector<int32_t> tokens, answers;
  std::vector<size_t> ends;
  return instruction->Encode(content, tokens, answers, ends).WithContext(file.Place(i));
}

/// For each document whether it cannot be used.
std::vector<uint8_t> FindBad(const DocumentFile& file, int threads,
                             const InstructionEncoder* instruction) {
  std::vector<uint8_t> bad(file.size());
  std::atomic<size_t> next{0};
  auto work = [&] {
    for (size_t first; (first = next.fetch_add(kAtOnce)) < bad.size();) {
      for (size_t i = first; i < std::min(first + kAtOnce, bad.size()); ++i) {
        bad[i] = Check(file, i, instruction).ok() ? 0 : 1;
      }
    }
  };
  std::vector<std::jthread> helpers;
  for (int t = 1; t < threads; ++t) helpers.emplace_back(work);
  work();
  helpers.clear();  // waits for them
  return bad;
}

}  // namespace

void SkipBadLines(std::vector<DocumentFile>& files, int threads,
                  const InstructionEncoder* instruction, SkippedLines& skipped) {
  for (DocumentFile& file : files) {
    const std::vector<uint8_t> bad = FindBad(file, threads, instruction);
    const auto first = std::find(bad.begin(), bad.end(), 1);
    if (first == bad.end()) continue;
    if (skipped.count == 0) {
      skipped.first = Check(file, static_cast<size_t>(first - bad.begin()), instruction).message();
    }
    skipped.count += std::count(first, bad.end(), 1);
    file.Remove(bad);
  }
}

}  // namespace weft::engine
