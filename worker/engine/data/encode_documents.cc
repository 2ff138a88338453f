#include "worker/engine/data/encode_documents.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>

#include "common/memory_errors.h"
#include "worker/engine/data/spelled_tokens.h"

namespace weft::engine {
namespace {

constexpr size_t kItemBytes = size_t{1} << 20;

/// What one thread encodes at a time: some whole documents, or a part of one.
struct Item {
  size_t first = 0;
  size_t last = 0;
  size_t begin = 0;
  size_t end = std::string_view::npos;  ///< Of the text, when a part; npos reaches to its end.
};

struct Encoded {
  std::vector<int32_t> tokens;
  std::vector<int32_t> answers;  ///< 0 or 1 for each of `tokens`, by an InstructionEncoder.
  std::vector<size_t> ends;      ///< Lengths of `tokens` at which documents end.
  SpelledSpecialTokens spelled;
  Status status;
};

void CutLongText(const DocumentPlace& place, size_t document, const Tokenizer& tokenizer,
                 std::vector<Item>& items) {
  std::string scratch;
  Result<std::string_view> text = place.file->Text(place.index, scratch);
  for (size_t begin = 0;;) {
    size_t end = tokenizer.SafeCut(*text, std::min(begin + kItemBytes, text->size()));
    if (end == text->size()) {
      items.push_back({document, document + 1, begin, std::string_view::npos});
      return;
    }
    items.push_back({document, document + 1, begin, end});
    begin = end;
  }
}

std::vector<Item> PartitionDocuments(const std::vector<DocumentPlace>& documents,
                                     const Tokenizer& tokenizer, bool may_cut) {
  std::vector<Item> items;
  size_t first = 0;
  size_t bytes = 0;
  for (size_t i = 0; i < documents.size(); ++i) {
    const DocumentFile& file = *documents[i].file;
    const size_t size = file.StoredBytes(documents[i].index);
    const bool cut = may_cut && !file.is_json() && size > 2 * kItemBytes;
    if (i > first && (cut || bytes + size > kItemBytes)) {
      items.push_back({.first = first, .last = i});
      first = i;
      bytes = 0;
    }
    if (cut) {
      CutLongText(documents[i], i, tokenizer, items);
      first = i + 1;
    } else {
      bytes += size;
    }
  }
  if (first < documents.size()) items.push_back({.first = first, .last = documents.size()});
  return items;
}

class Encoder {
 public:
  Encoder(const std::vector<DocumentPlace>& documents, const Tokenizer& tokenizer,
          const SpelledTokens& spelled, const EncodeOptions& options)
      : documents_(documents), tokenizer_(tokenizer), spelled_(spelled), options_(options) {}

  Encoded Encode(const Item& item) const {
    Encoded result;
    std::vector<int32_t>& tokens = result.tokens;
    auto add = [&](const std::vector<int64_t>& ids) {
      tokens.insert(tokens.end(), ids.begin(), ids.end());
    };
    auto add_text = [&](std::string_view text) {
      result.spelled.count += spelled_.Count(text, result.spelled.example);
      return tokenizer_.Encode(text, tokens, options_.special);
    };
    const SequenceForm& form = options_.form;
    DocumentContent content;
    for (size_t i = item.first; i < item.last; ++i) {
      result.status = WithBadLineHint(documents_[i].file->Read(documents_[i].index, content));
      if (!result.status.ok()) return result;
      const bool is_empty =
          content.text.empty() && content.second.empty() && content.rejected.empty();
      if (is_empty && !options_.keep_empty) continue;
      if (options_.instruction != nullptr) {
        result.spelled.count += spelled_.Count(content.text, result.spelled.example) +
                                spelled_.Count(content.second, result.spelled.example);
        result.spelled.count += spelled_.Count(content.rejected, result.spelled.example);
        result.status = WithBadLineHint(
            options_.instruction->Encode(content, tokens, result.answers, result.ends)
                .WithContext(documents_[i].file->Place(documents_[i].index)));
        if (!result.status.ok()) return result;
        continue;
      }
      if (item.begin == 0) add(form.begin);
      result.status = add_text(content.text.substr(item.begin, item.end - item.begin));
      if (!result.status.ok()) return result;
      if (item.end != std::string_view::npos) continue;
      if (!form.middle.empty()) {
        add(form.middle);
        result.status = add_text(content.second);
        if (!result.status.ok()) return result;
      }
      add(form.end);
      result.ends.push_back(tokens.size());
    }
    return result;
  }

 private:
  const std::vector<DocumentPlace>& documents_;
  const Tokenizer& tokenizer_;
  const SpelledTokens& spelled_;
  const EncodeOptions& options_;
};

}  // namespace

Result<SpelledSpecialTokens> EncodeDocuments(const std::vector<DocumentPlace>& documents,
                                             const Tokenizer& tokenizer,
                                             const EncodeOptions& options, TokenShardWriter& out,
                                             TokenShardWriter* answers) {
  const SpelledTokens spelled(tokenizer);
  const bool may_cut = options.special == SpecialTokens::kAsText || spelled.MayCutAtSpaces();
  const std::vector<Item> items = PartitionDocuments(documents, tokenizer, may_cut);
  const Encoder encoder(documents, tokenizer, spelled, options);
  const int threads = options.threads;
  const size_t wave = static_cast<size_t>(std::max(threads, 1)) * 4;
  SpelledSpecialTokens found;
  for (size_t first = 0; first < items.size(); first += wave) {
    const size_t count = std::min(wave, items.size() - first);
    std::vector<Encoded> encoded(count);
    std::atomic<size_t> next{0};
    auto work = [&] {
      for (size_t i = next++; i < count; i = next++) {
        Status status = CatchExhaustion("making tokens of the text", [&] {
          encoded[i] = encoder.Encode(items[first + i]);
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
      found.count += part.spelled.count;
      if (found.example.empty()) found.example = part.spelled.example;
      std::span<const int32_t> tokens = part.tokens;
      size_t begin = 0;
      for (size_t end : part.ends) {
        WEFT_RETURN_IF_ERROR(out.Append(tokens.subspan(begin, end - begin)));
        out.EndDocument();
        begin = end;
      }
      WEFT_RETURN_IF_ERROR(out.Append(tokens.subspan(begin)));
      if (answers != nullptr) WEFT_RETURN_IF_ERROR(answers->Append(part.answers));
    }
  }
  return found;
}

}  // namespace weft::engine
