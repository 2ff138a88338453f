#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/formats/tokenizer_json.h"

namespace weft {

/// Text of pieces that are written in characters: Unigram, SentencePiece, BPE over characters.
class PieceSpeller {
 public:
  PieceSpeller() = default;

  /// `byte_fallback`: pieces as "<0x0A>" are bytes.
  PieceSpeller(std::vector<std::string> pieces, PieceSpelling spelling, bool byte_fallback);

  /// Appends the text of ids; `at_start`: nothing comes before them.
  void Decode(std::span<const int32_t> ids, bool at_start, std::string& out) const;

  const std::vector<std::string>& pieces() const { return pieces_; }

  /// The id of a byte's piece, or -1.
  int32_t byte_token(unsigned char byte) const { return bytes_[byte]; }

 private:
  std::vector<std::string> pieces_;  ///< By id.
  PieceSpelling spelling_;
  std::vector<int32_t> byte_of_;                                ///< By id: its byte, or -1.
  std::vector<int32_t> bytes_ = std::vector<int32_t>(256, -1);  ///< By byte: its id, or -1.
};

}  // namespace weft
