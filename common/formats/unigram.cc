#include "common/formats/unigram.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/formats/sentencepiece_file.h"
#include "common/formats/utf8.h"

namespace weft {
namespace {

/// How much worse than the worst piece an unknown character is.
constexpr double kUnknownPenalty = 10.0;

}  // namespace

Result<std::unique_ptr<TokenModel>> UnigramModel::New(const TokenizerDefinition& definition) {
  std::unique_ptr<UnigramModel> model(new UnigramModel());
  model->tokens_ = definition.tokens;
  model->scores_ = definition.scores;
  model->splits_ = definition.splits;
  model->unknown_ = definition.unknown_id;
  model->byte_fallback_ = definition.byte_fallback;
  model->single_precision_ = definition.single_precision;
  model->roots_.fill(-1);
  model->byte_of_.assign(definition.tokens.size(), -1);
  for (const WordSplit& split : definition.splits) {
    const bool metaspace = split.kind == WordSplit::Kind::kMetaspace;
    if (metaspace) model->metaspace_ = split.metaspace;
    model->cuts_at_spaces_ |=
        metaspace ? split.split : split.kind <= WordSplit::Kind::kWhitespaceSplit;
  }
  if (definition.unknown_id < 0 ||
      definition.unknown_id >= static_cast<int32_t>(definition.tokens.size())) {
    return InvalidError("the model has no unknown token");
  }
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
      model->AddPiece(definition.tokens[id], static_cast<int32_t>(id));
    }
  }
  for (int byte = 0; model->byte_fallback_ && byte < 256; ++byte) {
    const auto it = std::find(definition.tokens.begin(), definition.tokens.end(), BytePiece(byte));
    if (it == definition.tokens.end()) {
      return InvalidError("byte_fallback needs the token " + BytePiece(byte));
    }
    const auto id = static_cast<int32_t>(it - definition.tokens.begin());
    model->bytes_[static_cast<size_t>(byte)] = id;
    model->byte_of_[static_cast<size_t>(id)] = byte;
  }
  return std::unique_ptr<TokenModel>(std::move(model));
}

int32_t UnigramModel::Child(int32_t node, char byte) const {
  int32_t child = trie_[static_cast<size_t>(node)].first_child;
  while (child >= 0 && trie_[static_cast<size_t>(child)].byte != byte) {
    child = trie_[static_cast<size_t>(child)].next_sibling;
  }
  return child;
}

void UnigramModel::AddPiece(std::string_view piece, int32_t token) {
  int32_t node = 0;
  for (size_t i = 0; i < piece.size(); ++i) {
    int32_t child = Child(node, piece[i]);
    if (child < 0) {
      child = static_cast<int32_t>(trie_.size());
      trie_.push_back({-1, -1, trie_[static_cast<size_t>(node)].first_child, piece[i]});
      trie_[static_cast<size_t>(node)].first_child = child;
    }
    if (i == 0) roots_[static_cast<unsigned char>(piece[0])] = child;
    node = child;
  }
  trie_[static_cast<size_t>(node)].token = token;
}

void UnigramModel::Encode(std::string_view text, bool at_start, std::vector<int32_t>& out) const {
  if (splits_.empty()) return EncodeWord(text, out);
  for (const std::string& word : SplitWords(splits_, text, at_start)) EncodeWord(word, out);
}

void UnigramModel::EncodeWord(std::string_view word, std::vector<int32_t>& out) const {
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
    int32_t node = roots_[static_cast<unsigned char>(word[at])];
    for (size_t end = at + 1; node >= 0; ++end) {
      if (const int32_t token = trie_[static_cast<size_t>(node)].token; token >= 0) {
        offer(end, so_far + scores_[static_cast<size_t>(token)], at, token);
        covered |= end == character;
      }
      if (end == word.size()) break;
      node = Child(node, word[end]);
    }
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
    EncodeUnknown(word.substr(begin, end - begin), out);
  }
}

void UnigramModel::EncodeUnknown(std::string_view text, std::vector<int32_t>& out) const {
  if (!byte_fallback_) {
    out.push_back(unknown_);
    return;
  }
  for (char c : text) out.push_back(bytes_[static_cast<unsigned char>(c)]);
}

void UnigramModel::Decode(std::span<const int32_t> ids, bool at_start, std::string& out) const {
  for (int32_t id : ids) {
    if (const int32_t byte = byte_of_[static_cast<size_t>(id)]; byte >= 0) {
      out += static_cast<char>(byte);
      at_start = false;
      continue;
    }
    std::string_view piece = tokens_[static_cast<size_t>(id)];
    while (!metaspace_.empty() && !piece.empty()) {
      const size_t found = std::min(piece.find(metaspace_), piece.size());
      out += piece.substr(0, found);
      if (found == piece.size()) {
        piece = {};
        break;
      }
      // The space put before the first word is none of the text.
      if (!at_start || found > 0) out += ' ';
      at_start = false;
      piece.remove_prefix(found + metaspace_.size());
    }
    out += piece;
    at_start = false;
  }
}

}  // namespace weft
