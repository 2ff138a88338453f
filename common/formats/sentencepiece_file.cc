#include "common/formats/sentencepiece_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_map>

#include "common/formats/tokenizer_json.h"
#include "common/formats/utf8.h"

namespace weft {
namespace {

/// Fields of a protobuf message one after another.
class ProtoReader {
 public:
  explicit ProtoReader(std::string_view bytes) : bytes_(bytes) {}

  /// Reads a field; false at the end and when the message is cut short or has a type that is not
  /// used any more, which `sound` then says.
  bool Next() {
    uint64_t key = 0;
    if (bytes_.empty() || !Varint(key)) return false;
    number = key >> 3;
    switch (key & 7) {
      case 0:
        return Varint(value);
      case 1:
        return Fixed(8);
      case 2: {
        uint64_t size = 0;
        if (!Varint(size) || size > bytes_.size()) return Fail();
        text = bytes_.substr(0, size);
        bytes_.remove_prefix(size);
        return true;
      }
      case 5:
        return Fixed(4);
      default:
        return Fail();
    }
  }

  uint64_t number = 0;
  uint64_t value = 0;     ///< Of numbers; the bits of fixed ones.
  std::string_view text;  ///< Of strings and messages.
  bool sound = true;

 private:
  bool Fail() {
    sound = false;
    return false;
  }
  bool Fixed(size_t size) {
    if (bytes_.size() < size) return Fail();
    value = 0;
    std::memcpy(&value, bytes_.data(), size);
    bytes_.remove_prefix(size);
    return true;
  }
  bool Varint(uint64_t& out) {
    out = 0;
    for (size_t i = 0; i < 10 && i < bytes_.size(); ++i) {
      const auto byte = static_cast<unsigned char>(bytes_[i]);
      out |= static_cast<uint64_t>(byte & 0x7f) << (7 * i);
      if (byte < 0x80) {
        bytes_.remove_prefix(i + 1);
        return true;
      }
    }
    return Fail();
  }

  std::string_view bytes_;
};

constexpr uint64_t kUnigram = 1;
constexpr uint64_t kBpe = 2;

Status ReadPiece(std::string_view message, SentencePiece& piece) {
  ProtoReader field(message);
  uint64_t type = 1;
  while (field.Next()) {
    if (field.number == 1) piece.text = field.text;
    if (field.number == 2) std::memcpy(&piece.score, &field.value, sizeof(piece.score));
    if (field.number == 3) type = field.value;
  }
  if (!field.sound) return InvalidError("a piece is cut short");
  if (!std::isfinite(piece.score)) return InvalidError("a piece has a score that is not finite");
  if (piece.text.empty() || CountInvalidUtf8(piece.text) > 0) {
    return InvalidError("a piece is empty or not text");
  }
  if (type == 0 || type > static_cast<uint64_t>(PieceType::kByte)) {
    return InvalidError("a piece has the kind " + std::to_string(type));
  }
  piece.type = static_cast<PieceType>(type);
  return OkStatus();
}

/// Names of the special tokens, which the trainer's part may change.
struct Names {
  std::string begin = "<s>";
  std::string end = "</s>";
  std::string padding = "<pad>";
};

Status ReadTrainer(std::string_view message, SentencePieceFile& file, Names& names) {
  ProtoReader field(message);
  uint64_t kind = kUnigram;
  bool suffix = false;
  while (field.Next()) {
    if (field.number == 3) kind = field.value;
    if (field.number == 24) suffix = field.value != 0;
    if (field.number == 35) file.byte_fallback = field.value != 0;
    if (field.number == 46) names.begin = field.text;
    if (field.number == 47) names.end = field.text;
    if (field.number == 48) names.padding = field.text;
  }
  if (!field.sound) return InvalidError("the trainer's part is cut short");
  if (kind != kUnigram && kind != kBpe) {
    return InvalidError("of SentencePiece only unigram and BPE models are supported, not kind " +
                        std::to_string(kind));
  }
  if (suffix) return InvalidError("SentencePiece with whitespace as a suffix is not supported");
  file.is_bpe = kind == kBpe;
  return OkStatus();
}

Status ReadNormalizer(std::string_view message, SentencePieceFile& file) {
  ProtoReader field(message);
  while (field.Next()) {
    if (field.number == 2 && !field.text.empty()) {
      WEFT_ASSIGN_OR_RETURN(file.charsmap, Charsmap::Parse(field.text));
      file.charsmap_bytes = field.text;
    }
    if (field.number == 3) file.add_dummy_prefix = field.value != 0;
    if (field.number == 4) file.remove_extra_whitespaces = field.value != 0;
    if (field.number == 5) file.escape_whitespaces = field.value != 0;
  }
  return field.sound ? OkStatus() : InvalidError("the normalizer is cut short");
}

}  // namespace

Result<SentencePieceFile> ParseSentencePiece(std::string_view bytes,
                                             const PrefixSwitches& switches) {
  ProtoReader field(bytes);
  SentencePieceFile file;
  Names names;
  while (field.Next()) {
    if (field.number == 1) {
      WEFT_RETURN_IF_ERROR(ReadPiece(field.text, file.pieces.emplace_back()));
    }
    if (field.number == 2) WEFT_RETURN_IF_ERROR(ReadTrainer(field.text, file, names));
    if (field.number == 3) WEFT_RETURN_IF_ERROR(ReadNormalizer(field.text, file));
  }
  if (!field.sound) return InvalidError("it is no SentencePiece model, or cut short");
  if (file.pieces.empty()) return InvalidError("it is no SentencePiece model: it has no pieces");
  if (file.pieces.size() > kMaxTokenId) return InvalidError("it has too many pieces");
  std::unordered_map<std::string_view, int32_t> ids;
  int unknown = 0;
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    const SentencePiece& piece = file.pieces[id];
    if (!ids.emplace(piece.text, static_cast<int32_t>(id)).second) {
      return InvalidError("a piece is given twice");
    }
    if (piece.type == PieceType::kUnused && file.is_bpe) {
      return InvalidError("BPE of SentencePiece with pieces out of use is not supported");
    }
    if (piece.type != PieceType::kUnknown) continue;
    file.unknown = static_cast<int32_t>(id);
    ++unknown;
  }
  if (unknown != 1) {
    return InvalidError("it must have one unknown token, not " + std::to_string(unknown));
  }
  auto find = [&](const std::string& text, PieceType type) {
    auto it = ids.find(text);
    const bool found = it != ids.end() && file.pieces[static_cast<size_t>(it->second)].type == type;
    return found ? it->second : -1;
  };
  file.begin = find(names.begin, PieceType::kControl);
  file.end = find(names.end, PieceType::kControl);
  file.padding = find(names.padding, PieceType::kControl);
  for (int byte = 0; file.byte_fallback && byte < 256; ++byte) {
    if (find(BytePiece(byte), PieceType::kByte) < 0) {
      return InvalidError("byte_fallback needs the piece " + BytePiece(byte));
    }
  }
  file.add_dummy_prefix = switches.add_prefix_space.value_or(file.add_dummy_prefix);
  file.prefix_only_first = !switches.legacy.value_or(true);
  if (file.prefix_only_first && !file.escape_whitespaces) {
    return InvalidError(
        "tokenizer_config.json has legacy false, which is not supported for a model that leaves "
        "spaces as they are. hint: take legacy out of tokenizer_config.json");
  }
  return file;
}

std::vector<double> UnigramScores(const SentencePieceFile& file) {
  float highest = 0;
  for (const SentencePiece& piece : file.pieces) highest = std::max(highest, piece.score);
  std::vector<double> scores;
  for (const SentencePiece& piece : file.pieces) {
    scores.push_back(piece.type == PieceType::kUserDefined
                         ? static_cast<double>(piece.text.size()) * highest - 0.1
                         : static_cast<double>(piece.score));
  }
  return scores;
}

std::string BytePiece(int byte) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return std::string("<0x") + kDigits[byte >> 4] + kDigits[byte & 15] + ">";
}

}  // namespace weft
