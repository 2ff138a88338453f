#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace weft::engine {

/// A run of tokens of one document in a packed sequence.
struct TokenRun {
  uint64_t first = 0;  ///< Token index in the span.
  uint32_t count = 0;
  bool operator==(const TokenRun&) const = default;
};

/// Sequences made of whole documents.
struct PackedSequences {
  std::vector<TokenRun> segments;
  std::vector<uint64_t> starts = {0};  ///< First segment of each sequence, then their number.

  size_t size() const { return starts.size() - 1; }
  std::span<const TokenRun> operator[](size_t i) const {
    return std::span(segments).subspan(starts[i], starts[i + 1] - starts[i]);
  }
};

/// What becomes of documents that are longer than a sequence.
enum class LongDocuments : uint8_t {
  kCut,      ///< Pieces that take up all of it.
  kShorten,  ///< One piece a document, the rest is left out.
};

/// Best-fit decreasing (Ding et al., "Fewer Truncations Improve Language Modeling", ICML 2024):
/// documents longer than `length` are cut into pieces of `length` and a rest, or shortened to
/// `length`, and every piece goes,
/// longest first, into the fullest sequence that has room. No document that fits is cut. Equally
/// long pieces go in their order in the data, and the sequences are shuffled afterwards with a
/// fixed key, for packing leaves them sorted by length. O(N log length) for N documents.
/// `document_starts` as of TokenSpan::DocumentStarts; length in [1, 2^20].
PackedSequences PackBestFit(std::span<const uint64_t> document_starts, int64_t length,
                            LongDocuments long_documents = LongDocuments::kCut);

}  // namespace weft::engine
