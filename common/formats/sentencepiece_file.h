#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/formats/charsmap.h"
#include "common/status.h"

namespace weft {

/// What a piece of SentencePiece is for; the numbers of its file.
enum class PieceType : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,  ///< Always one token where it is in the text.
  kUnused = 5,       ///< Never given.
  kByte = 6,
};

struct SentencePiece {
  std::string text;
  float score = 0;
  PieceType type = PieceType::kNormal;
};

/// A SentencePiece .model (a protobuf ModelProto) as far as it concerns encoding.
struct SentencePieceFile {
  std::vector<SentencePiece> pieces;  ///< By id.
  bool is_bpe = false;                ///< Otherwise unigram.
  bool byte_fallback = false;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  std::optional<Charsmap> charsmap;
  std::string charsmap_bytes;  ///< What `charsmap` was read from.
  int32_t unknown = -1, begin = -1, end = -1, padding = -1;
};

/// Reads the file. kInvalid: the message or one in it is cut short or has fields of wrong types;
/// pieces that are none, empty, repeated, of an unknown kind or without a finite score; not exactly
/// one unknown token; byte fallback without all bytes; a broken character map; models of words and
/// characters, BPE with pieces out of use, and whitespace as a suffix, which are not supported.
Result<SentencePieceFile> ParseSentencePiece(std::string_view bytes);

/// The spelling of a byte's piece: "<0x0A>".
std::string BytePiece(int byte);

}  // namespace weft
