#include "common/formats/unigram.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/formats/sentencepiece_file.h"
#include "common/formats/utf8.h"
#include "common/json.h"

namespace weft {
namespace {

/// How much worse than the worst piece an unknown character is.
constexpr double kUnknownPenalty = 10.0;

}  // namespace

Result<std::unique_ptr<TokenModel>> UnigramModel::New(const TokenizerDefinition& definition) {
  std::unique_ptr<UnigramModel> model(new UnigramModel());
  model->speller_ = PieceSpeller(definition.tokens, definition.spelling, definition.byte_fallback);
  model->scores_ = definition.scores;
  model->splits_ = definition.splits;
  model->unknown_ = definition.unknown_id;
  model->byte_fallback_ = definition.byte_fallback;
  model->single_precision_ = definition.single_precision;
  model->cuts_at_spaces_ = weft::CutsAtSpaces(definition.splits);
  double lowest = 0;
  for (double score : definition.scores) {
    if (!std::isfinite(score)) return InvalidError("a piece has a score that is not finite");
    lowest = std::min(lowest, score);
  }
  model->unknown_score_ = lowest - kUnknownPenalty;
  std::vector<bool> special(definition.tokens.size());
  for (const AddedToken& token : definition.added) {
    if (token.special && static_cast<size_t>(token.id) < special.size()) {
      special[static_cast<size_t>(token.id)] = true;
    }
  }
  for (int32_t id : definition.not_in_text) special[static_cast<size_t>(id)] = true;
  for (size_t id = 0; id < definition.tokens.size(); ++id) {
    // The spelling of a special token is plain text, which must not give it.
    if (!special[id] && !definition.tokens[id].empty()) {
      model->trie_.Add(definition.tokens[id], static_cast<int32_t>(id));
    }
  }
  for (int byte = 0; model->byte_fallback_ && byte < 256; ++byte) {
    if (model->speller_.byte_token(static_cast<unsigned char>(byte)) < 0) {
      return InvalidError("byte_fallback needs the token " + BytePiece(byte));
    }
  }
  return std::unique_ptr<TokenModel>(std::move(model));
}

Status UnigramModel::Encode(std::string_view text, bool at_start, std::vector<int32_t>& out) const {
  Status status;
  WEFT_RETURN_IF_ERROR(SplitWords(splits_, text, at_start, [&](std::string_view word) {
    if (status.ok()) status = EncodeWord(word, out);
  }));
  return status;
}

Status UnigramModel::EncodeWord(std::string_view word, std::vector<int32_t>& out) const {
  struct Best {
    double score = 0;
    size_t begin = SIZE_MAX;  ///< SIZE_MAX: not reached yet.
    int32_t token = 0;
  };
  std::vector<Best> best(word.size() + 1);
  auto offer = [&](size_t end, double score, size_t begin, int32_t token) {
    if (single_precision_) score = static_cast<float>(score);
    if (best[end].begin == SIZE_MAX || score > best[end].score) best[end] = {score, begin, token};
  };
  for (size_t at = 0; at < word.size();) {
    const size_t character = at + static_cast<size_t>(ReadUtf8(word, at).bytes);
    const double so_far = best[at].score;
    bool covered = false;
    trie_.ForEachPrefix(word.substr(at), [&](int32_t token, size_t size) {
      offer(at + size, so_far + scores_[static_cast<size_t>(token)], at, token);
      covered |= at + size == character;
    });
    if (!covered) offer(character, so_far + unknown_score_, at, unknown_);
    at = character;
  }
  std::vector<std::pair<size_t, int32_t>> pieces;  // from the end: begin, token
  for (size_t end = word.size(); end > 0; end = best[end].begin) {
    pieces.emplace_back(best[end].begin, best[end].token);
  }
  for (size_t i = pieces.size(); i-- > 0;) {
    const size_t begin = pieces[i].first;
    if (pieces[i].second != unknown_) {
      out.push_back(pieces[i].second);
      continue;
    }
    // Unknown characters in a row are one unknown token.
    while (i > 0 && pieces[i - 1].second == unknown_) --i;
    const size_t end = i > 0 ? pieces[i - 1].first : word.size();
    WEFT_RETURN_IF_ERROR(EncodeUnknown(word.substr(begin, end - begin), out));
  }
  return OkStatus();
}

Status UnigramModel::EncodeUnknown(std::string_view text, std::vector<int32_t>& out) const {
  if (byte_fallback_) {
    for (char c : text) out.push_back(speller_.byte_token(static_cast<unsigned char>(c)));
    return OkStatus();
  }
  if (unknown_ < 0) {
    return InvalidError("no token covers " + Quoted(text, 60) +
                        " of a text, and the tokenizer has no unknown token (unk_id)");
  }
  out.push_back(unknown_);
  return OkStatus();
}

void UnigramModel::Decode(std::span<const int32_t> ids, bool at_start, std::string& out) const {
  speller_.Decode(ids, at_start, out);
}

}  // namespace weft
