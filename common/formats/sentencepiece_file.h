#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/formats/charsmap.h"
#include "common/status.h"

namespace weft {

/// The purpose of a piece of SentencePiece; the numbers of its file.
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
  /// Only the start of a document gets that prefix, unless it begins with a space. A text after a
  /// special token then gets none, and keeps a space that it begins with.
  bool prefix_only_first = false;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  std::optional<Charsmap> charsmap;
  std::string charsmap_bytes;  ///< What `charsmap` was read from.
  int32_t unknown = -1, begin = -1, end = -1, padding = -1;
};

/// What tokenizer_config.json says of the space that SentencePiece puts before a text; where it
/// says nothing, that is before every text that `add_dummy_prefix` of the model asks it for, also
/// after a special token.
struct PrefixSwitches {
  std::optional<bool> legacy = {};            ///< False: SentencePieceFile::prefix_only_first.
  std::optional<bool> add_prefix_space = {};  ///< In place of SentencePieceFile::add_dummy_prefix.
};

/// Reads the file. kInvalid: the message or one in it is cut short or has fields of wrong types;
/// pieces that are none, empty, repeated, of an unknown kind or without a finite score; not exactly
/// one unknown token; byte fallback without all bytes; a broken character map; models of words and
/// characters, BPE with pieces out of use, and whitespace as a suffix, which are not supported;
/// `legacy: false` with spaces that are not escaped.
Result<SentencePieceFile> ParseSentencePiece(std::string_view bytes,
                                             const PrefixSwitches& switches = {});

/// Scores of the pieces as the library's unigram model weighs them, by id: a user-defined piece
/// beats any way to make it up of others.
std::vector<double> UnigramScores(const SentencePieceFile& file);

/// The spelling of a byte's piece: "<0x0A>".
std::string BytePiece(int byte);

}  // namespace weft
