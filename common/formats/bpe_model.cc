#include "common/formats/bpe_model.h"

#include <utility>

#include "common/formats/byte_alphabet.h"
#include "common/formats/utf8.h"
#include "common/json.h"

namespace weft {
namespace {

using TokenIds = std::unordered_map<std::string_view, int32_t>;

/// Bytes of a token in a message.
constexpr size_t kShownBytes = 60;

Status AddMerges(const TokenizerDefinition& definition, const TokenIds& ids, BpeMerges& merges) {
  for (size_t rank = 0; rank < definition.merges.size(); ++rank) {
    const auto& [left, right] = definition.merges[rank];
    const std::string merged = left + right;
    auto l = ids.find(left), r = ids.find(right), m = ids.find(merged);
    if (l == ids.end() || r == ids.end() || m == ids.end()) {
      return InvalidError("merge " + std::to_string(rank) + " of " + Quoted(left, kShownBytes) +
                          " and " + Quoted(right, kShownBytes) +
                          " names a token that is not in the vocabulary");
    }
    if (!merges.Add(l->second, r->second, m->second)) {
      return InvalidError("merge " + std::to_string(rank) + " of " + Quoted(left, kShownBytes) +
                          " and " + Quoted(right, kShownBytes) + " is given twice");
    }
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<TokenModel>> BpeModel::New(const TokenizerDefinition& definition) {
  TokenIds ids;
  for (size_t id = 0; id < definition.tokens.size(); ++id) {
    if (!definition.tokens[id].empty()) {
      ids.emplace(definition.tokens[id], static_cast<int32_t>(id));
    }
  }
  std::unique_ptr<BpeModel> model(new BpeModel());
  WEFT_RETURN_IF_ERROR(AddMerges(definition, ids, model->merges_));
  model->splits_ = definition.splits;
  model->cuts_at_spaces_ = weft::CutsAtSpaces(definition.splits);
  model->byte_level_ = definition.byte_level;
  model->byte_fallback_ = definition.byte_fallback;
  model->fuse_unknown_ = definition.fuse_unknown;
  model->unknown_token_ = definition.unknown_token;
  if (auto it = ids.find(definition.unknown_token); it != ids.end()) model->unknown_ = it->second;
  model->speller_ = PieceSpeller(definition.tokens, definition.spelling, definition.byte_fallback);
  const std::vector<std::string>& tokens = model->speller_.pieces();
  if (definition.byte_level) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const auto it = ids.find(BytesToAlphabet(std::string(1, static_cast<char>(byte))));
      model->byte_tokens_[byte] = it == ids.end() ? -1 : it->second;
      model->all_bytes_ &= it != ids.end();
    }
    model->bytes_.reserve(tokens.size());
    for (const std::string& token : tokens) {
      model->bytes_.push_back(AlphabetToBytes(token).value_or(token));
    }
  } else {
    for (size_t id = 0; id < tokens.size(); ++id) {
      const std::string& token = tokens[id];
      if (!token.empty() && static_cast<size_t>(ReadUtf8(token, 0).bytes) == token.size()) {
        model->characters_.emplace(token, static_cast<int32_t>(id));
      }
    }
  }
  if (definition.ignore_merges) {
    for (size_t id = 0; id < tokens.size(); ++id) {
      if (tokens[id].empty()) continue;
      const std::string& spelling = definition.byte_level ? model->bytes_[id] : tokens[id];
      model->whole_pieces_.emplace(spelling, static_cast<int32_t>(id));
    }
    for (const AddedToken& token : definition.added) model->whole_pieces_.erase(token.content);
  }
  return std::unique_ptr<TokenModel>(std::move(model));
}

Status BpeModel::Encode(std::string_view text, bool at_start, std::vector<int32_t>& out) const {
  bool lost = false;
  WEFT_RETURN_IF_ERROR(SplitWords(splits_, text, at_start,
                                  [&](std::string_view piece) { EncodePiece(piece, out, lost); }));
  if (!lost) return OkStatus();
  return InvalidError("a text needs the unknown token " + Quoted(unknown_token_, kShownBytes) +
                      ", which is not in the vocabulary");
}

void BpeModel::EncodePiece(std::string_view piece, std::vector<int32_t>& out, bool& lost) const {
  if (!whole_pieces_.empty()) {
    if (auto it = whole_pieces_.find(piece); it != whole_pieces_.end()) {
      out.push_back(it->second);
      return;
    }
  }
  const size_t first = out.size();
  if (byte_level_ && all_bytes_) {
    for (char byte : piece) out.push_back(byte_tokens_[static_cast<unsigned char>(byte)]);
  } else {
    AddCharacters(piece, out, lost);
  }
  merges_.Apply(out, first);
}

void BpeModel::AddCharacters(std::string_view piece, std::vector<int32_t>& out, bool& lost) const {
  bool after_unknown = false;
  for (size_t at = 0; at < piece.size();) {
    // Byte-level BPE has a character for each byte.
    const Utf8Char c = ReadUtf8(piece, at);
    const size_t size = byte_level_ ? 1 : static_cast<size_t>(c.bytes);
    std::string_view character = piece.substr(at, size);
    at += size;
    if (byte_level_) {
      if (const int32_t id = byte_tokens_[static_cast<unsigned char>(character[0])]; id >= 0) {
        out.push_back(id);
        after_unknown = false;
        continue;
      }
    } else if (const auto it = characters_.find(character); it != characters_.end()) {
      out.push_back(it->second);
      after_unknown = false;
      continue;
    }
    std::string spelling(character);
    if (byte_level_) spelling = BytesToAlphabet(character);
    bool falls_back = byte_fallback_;
    for (char byte : spelling) {
      falls_back &= speller_.byte_token(static_cast<unsigned char>(byte)) >= 0;
    }
    if (falls_back) {
      for (char byte : spelling) {
        out.push_back(speller_.byte_token(static_cast<unsigned char>(byte)));
      }
      after_unknown = false;
      continue;
    }
    if (unknown_ < 0) {
      lost |= !unknown_token_.empty();
      continue;
    }
    if (!after_unknown || !fuse_unknown_) out.push_back(unknown_);
    after_unknown = true;
  }
}

void BpeModel::Decode(std::span<const int32_t> ids, bool at_start, std::string& out) const {
  if (!byte_level_) return speller_.Decode(ids, at_start, out);
  for (int32_t id : ids) out += bytes_[static_cast<size_t>(id)];
}

}  // namespace weft
