#include "worker/engine/data/encode_documents.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>

#include "common/memory_errors.h"

namespace weft::engine {
namespace {

constexpr size_t kItemBytes = size_t{1} << 20;

/// What one thread encodes at a time: some whole documents, or a part of one.
struct Item {
  const DocumentFile* file = nullptr;
  size_t first = 0;
  size_t last = 0;
  size_t begin = 0;
  size_t end = std::string_view::npos;  ///< Of the text, when a part; npos reaches to its end.
};

struct Encoded {
  std::vector<int32_t> tokens;
  std::vector<size_t> ends;  ///< Lengths of `tokens` at which documents end.
  Status status;
};

void CutLongText(const DocumentFile& file, size_t document, const Tokenizer& tokenizer,
                 std::vector<Item>& items) {
  std::string scratch;
  Result<std::string_view> text = file.Text(document, scratch);
  for (size_t begin = 0;;) {
    size_t end = tokenizer.SafeCut(*text, std::min(begin + kItemBytes, text->size()));
    if (end == text->size()) {
      items.push_back({&file, document, document + 1, begin, std::string_view::npos});
      return;
    }
    items.push_back({&file, document, document + 1, begin, end});
    begin = end;
  }
}

std::vector<Item> ShareOut(const std::vector<DocumentFile>& files, const Tokenizer& tokenizer) {
  std::vector<Item> items;
  for (const DocumentFile& file : files) {
    size_t first = 0;
    size_t bytes = 0;
    for (size_t i = 0; i < file.size(); ++i) {
      size_t size = file.StoredBytes(i);
      bool cut = !file.is_jsonl() && size > 2 * kItemBytes;
      if (i > first && (cut || bytes + size > kItemBytes)) {
        items.push_back({.file = &file, .first = first, .last = i});
        first = i;
        bytes = 0;
      }
      if (cut) {
        CutLongText(file, i, tokenizer, items);
        first = i + 1;
      } else {
        bytes += size;
      }
    }
    if (first < file.size()) items.push_back({.file = &file, .first = first, .last = file.size()});
  }
  return items;
}

Encoded Encode(const Item& item, const Tokenizer& tokenizer, int32_t end_of_text) {
  Encoded result;
  std::string scratch;
  for (size_t i = item.first; i < item.last; ++i) {
    Result<std::string_view> text = item.file->Text(i, scratch);
    if (!text.ok()) {
      result.status = text.status();
      return result;
    }
    if (text->empty()) continue;
    tokenizer.Encode(text->substr(item.begin, item.end - item.begin), result.tokens);
    if (item.end != std::string_view::npos) continue;
    result.tokens.push_back(end_of_text);
    result.ends.push_back(result.tokens.size());
  }
  return result;
}

}  // namespace

Status EncodeDocuments(const std::vector<DocumentFile>& files, const Tokenizer& tokenizer,
                       int32_t end_of_text, int threads, TokenShardWriter& out) {
  const std::vector<Item> items = ShareOut(files, tokenizer);
  const size_t wave = static_cast<size_t>(std::max(threads, 1)) * 4;
  for (size_t first = 0; first < items.size(); first += wave) {
    const size_t count = std::min(wave, items.size() - first);
    std::vector<Encoded> encoded(count);
    std::atomic<size_t> next{0};
    auto work = [&] {
      for (size_t i = next++; i < count; i = next++) {
        Status status = CatchExhaustion("making tokens of the text", [&] {
          encoded[i] = Encode(items[first + i], tokenizer, end_of_text);
          return OkStatus();
        });
        if (!status.ok()) encoded[i].status = status;
      }
    };
    {
      std::vector<std::jthread> helpers;
      for (int t = 1; t < threads; ++t) helpers.emplace_back(work);
      work();
    }
    for (const Encoded& part : encoded) {
      WEFT_RETURN_IF_ERROR(part.status);
      std::span<const int32_t> tokens = part.tokens;
      size_t begin = 0;
      for (size_t end : part.ends) {
        WEFT_RETURN_IF_ERROR(out.Append(tokens.subspan(begin, end - begin)));
        out.EndDocument();
        begin = end;
      }
      WEFT_RETURN_IF_ERROR(out.Append(tokens.subspan(begin)));
    }
  }
  return OkStatus();
}

}  // namespace weft::engine
