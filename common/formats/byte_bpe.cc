#include "common/formats/byte_bpe.h"

#include <array>
#include <utility>

#include "common/formats/byte_alphabet.h"
#include "common/json.h"

namespace weft {
namespace {

using TokenIds = std::unordered_map<std::string_view, int32_t>;

std::string Show(const std::string& text) {
  return Json(text.substr(0, 60)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<std::array<int32_t, 256>> FindByteTokens(const TokenIds& ids) {
  std::array<int32_t, 256> tokens{};
  for (int byte = 0; byte < 256; ++byte) {
    std::string name = BytesToAlphabet(std::string(1, static_cast<char>(byte)));
    auto it = ids.find(name);
    if (it == ids.end()) {
      return InvalidError("the vocabulary has no token for byte " + std::to_string(byte) + " (" +
                          Show(name) + "). hint: of BPE only the byte-level kind is supported");
    }
    tokens[static_cast<size_t>(byte)] = it->second;
  }
  return tokens;
}

Status AddMerges(const TokenizerDefinition& definition, const TokenIds& ids, BpeMerges& merges) {
  for (size_t rank = 0; rank < definition.merges.size(); ++rank) {
    const auto& [left, right] = definition.merges[rank];
    const std::string merged = left + right;
    auto l = ids.find(left), r = ids.find(right), m = ids.find(merged);
    if (l == ids.end() || r == ids.end() || m == ids.end()) {
      return InvalidError("merge " + std::to_string(rank) + " of " + Show(left) + " and " +
                          Show(right) + " names a token that is not in the vocabulary");
    }
    if (!merges.Add(l->second, r->second, m->second)) {
      return InvalidError("merge " + std::to_string(rank) + " of " + Show(left) + " and " +
                          Show(right) + " is given twice");
    }
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<TokenModel>> ByteBpeModel::New(const TokenizerDefinition& definition) {
  TokenIds ids;
  for (size_t id = 0; id < definition.tokens.size(); ++id) {
    if (!definition.tokens[id].empty()) {
      ids.emplace(definition.tokens[id], static_cast<int32_t>(id));
    }
  }
  WEFT_ASSIGN_OR_RETURN(auto byte_tokens, FindByteTokens(ids));
  std::unique_ptr<ByteBpeModel> model(new ByteBpeModel(byte_tokens));
  WEFT_RETURN_IF_ERROR(AddMerges(definition, ids, model->merges_));
  model->pattern_ = definition.pattern;
  model->add_prefix_space_ = definition.add_prefix_space;
  model->bytes_.reserve(definition.tokens.size());
  for (const std::string& token : definition.tokens) {
    model->bytes_.push_back(AlphabetToBytes(token).value_or(token));
  }
  if (definition.ignore_merges) {
    for (size_t id = 0; id < definition.tokens.size(); ++id) {
      if (!definition.tokens[id].empty()) {
        model->whole_pieces_.emplace(model->bytes_[id], static_cast<int32_t>(id));
      }
    }
    for (const AddedToken& token : definition.added) model->whole_pieces_.erase(token.content);
  }
  return std::unique_ptr<TokenModel>(std::move(model));
}

void ByteBpeModel::Encode(std::string_view text, bool /*at_start*/,
                          std::vector<int32_t>& out) const {
  std::string prefixed;
  if (add_prefix_space_ && !text.empty() && text[0] != ' ') {
    prefixed = ' ';
    prefixed += text;
    text = prefixed;
  }
  while (!text.empty()) {
    std::string_view piece = text.substr(0, NextPiece(pattern_, text));
    text.remove_prefix(piece.size());
    if (!whole_pieces_.empty()) {
      if (auto it = whole_pieces_.find(piece); it != whole_pieces_.end()) {
        out.push_back(it->second);
        continue;
      }
    }
    merges_.Encode(piece, out);
  }
}

void ByteBpeModel::Decode(std::span<const int32_t> ids, bool /*at_start*/, std::string& out) const {
  for (int32_t id : ids) out += bytes_[static_cast<size_t>(id)];
}

}  // namespace weft
