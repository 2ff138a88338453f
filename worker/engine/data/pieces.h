#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/formats/sequence_form.h"
#include "common/status.h"
#include "worker/engine/data/dataset.h"
#include "worker/engine/data/packing.h"

namespace weft::engine {

/// The text of a padded sequence, without the tokens of its form.
struct Piece {
  TokenRun first;         ///< Of the text, or of the first text of a pair.
  TokenRun second;        ///< Of the second text; empty for single texts.
  uint64_t document = 0;  ///< In the shard.
  bool goes_on = false;   ///< Its document has more text after it.
};

/// How much of two texts of these lengths is kept where `room` tokens are left: the longer loses
/// tokens from its end until both fit, the second one when they are equally long.
inline std::pair<uint64_t, uint64_t> ShortenPair(uint64_t first, uint64_t second, uint64_t room) {
  if (first + second <= room) return {first, second};
  const uint64_t half = room / 2;
  if (second <= half) return {room - second, second};
  if (first <= room - half) return {first, room - first};
  return {room - half, half};
}

/// Documents of `span` as texts of sequences of at most `length` tokens with those of the form.
/// Pairs are always shortened, both texts to about equal length (ShortenPair). `predicts_next`: a
/// piece of one last token, which has nothing to predict, is left out. kInvalid: no room for text,
/// or a document that is not a pair where the form has a middle.
Result<std::vector<Piece>> MakePieces(const TokenSpan& span, const SequenceForm& form,
                                      uint64_t length, LongDocuments long_documents,
                                      bool predicts_next);

}  // namespace weft::engine
