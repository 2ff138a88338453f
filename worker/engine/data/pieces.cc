#include "worker/engine/data/pieces.h"

#include <algorithm>
#include <span>
#include <string>

namespace weft::engine {
namespace {

/// Reads documents of a span and tells their text from the tokens of the form. These are found by
/// what they are, for a span may cut a document, and then one side of it has none.
class PieceMaker {
 public:
  PieceMaker(const TokenSpan& span, const SequenceForm& form, uint64_t room, bool predicts_next)
      : span_(span), form_(form), room_(room), predicts_next_(predicts_next) {}

  void Cut(uint64_t document, uint64_t begin, uint64_t end, std::vector<Piece>& out) {
    for (uint64_t at = begin; at < end; at += room_) {
      const auto count = static_cast<uint32_t>(std::min(room_, end - at));
      const bool goes_on = at + count < end;
      if (predicts_next_ && count == 1 && !goes_on) continue;
      out.push_back({{at, count}, {}, document, goes_on});
    }
  }

  void Shorten(uint64_t document, uint64_t begin, uint64_t end, std::vector<Piece>& out) {
    const auto count = static_cast<uint32_t>(std::min(room_, end - begin));
    const bool goes_on = begin + count < end;
    if (predicts_next_ && count == 1 && !goes_on) return;
    out.push_back({{begin, count}, {}, document, goes_on});
  }

  Status ShortenBoth(uint64_t document, uint64_t begin, uint64_t end, std::vector<Piece>& out) {
    tokens_.resize(end - begin);
    span_.shard->Read(span_.first + begin, tokens_);
    const auto middle =
        std::search(tokens_.begin(), tokens_.end(), form_.middle.begin(), form_.middle.end());
    if (middle == tokens_.end()) {
      return InvalidError("document " + std::to_string(document) + " is not a pair of texts");
    }
    const auto first = static_cast<uint64_t>(middle - tokens_.begin());
    const uint64_t second_begin = begin + first + form_.middle.size();
    const auto [kept, kept_second] = ShortenPair(first, end - second_begin, room_);
    out.push_back({{begin, static_cast<uint32_t>(kept)},
                   {second_begin, static_cast<uint32_t>(kept_second)},
                   document,
                   false});
    return OkStatus();
  }

  /// Whether the tokens at `at` of the span, before `end`, are these.
  bool Matches(uint64_t at, uint64_t end, const std::vector<int64_t>& form) {
    if (form.empty() || end - at < form.size()) return false;
    tokens_.resize(form.size());
    span_.shard->Read(span_.first + at, tokens_);
    return std::equal(form.begin(), form.end(), tokens_.begin());
  }

 private:
  const TokenSpan& span_;
  const SequenceForm& form_;
  const uint64_t room_;
  const bool predicts_next_;
  std::vector<int32_t> tokens_;
};

}  // namespace

Result<std::vector<Piece>> MakePieces(const TokenSpan& span, const SequenceForm& form,
                                      uint64_t length, LongDocuments long_documents,
                                      bool predicts_next) {
  std::vector<Piece> pieces;
  if (span.count == 0) return pieces;
  const uint64_t texts = form.middle.empty() ? 1 : 2;
  if (form.Overhead() + texts > length) {
    return InvalidError("a sequence of " + std::to_string(length) + " tokens has no room for " +
                        std::to_string(form.Overhead()) +
                        " special tokens and text. hint: raise train.sequence_length");
  }
  PieceMaker maker(span, form, length - form.Overhead(), predicts_next);
  const std::vector<uint64_t> starts = span.DocumentStarts();
  std::span<const uint64_t> all = span.shard->document_starts();
  uint64_t document =
      static_cast<uint64_t>(std::upper_bound(all.begin(), all.end(), span.first) - all.begin() - 1);
  for (size_t d = 0; d + 1 < starts.size(); ++d, ++document) {
    uint64_t begin = starts[d];
    uint64_t end = starts[d + 1];
    if (maker.Matches(begin, end, form.begin)) begin += form.begin.size();
    if (end - begin >= form.end.size() && maker.Matches(end - form.end.size(), end, form.end)) {
      end -= form.end.size();
    }
    if (!form.middle.empty()) {
      WEFT_RETURN_IF_ERROR(maker.ShortenBoth(document, begin, end, pieces));
    } else if (long_documents == LongDocuments::kShorten) {
      maker.Shorten(document, begin, end, pieces);
    } else {
      maker.Cut(document, begin, end, pieces);
    }
  }
  return pieces;
}

}  // namespace weft::engine
