#include "common/formats/sentencepiece_model.h"

#include <algorithm>
#include <queue>
#include <utility>

#include "common/formats/unigram.h"
#include "common/formats/utf8.h"

namespace weft {
namespace {

constexpr std::string_view kSpaceSymbol = "\xe2\x96\x81";  // U+2581
constexpr std::string_view kReplacement = "\xef\xbf\xbd";

/// The pieces as a unigram model, which also decodes those of BPE.
TokenizerDefinition AsUnigram(const SentencePieceFile& file) {
  TokenizerDefinition definition;
  definition.kind = TokenizerKind::kUnigram;
  definition.byte_fallback = file.byte_fallback;
  definition.single_precision = true;
  definition.unknown_id = file.unknown;
  definition.spelling.metaspace = kSpaceSymbol;
  definition.scores = UnigramScores(file);
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    const SentencePiece& piece = file.pieces[id];
    definition.tokens.push_back(piece.text);
    if (piece.type != PieceType::kNormal && piece.type != PieceType::kUserDefined) {
      definition.not_in_text.push_back(static_cast<int32_t>(id));
    }
  }
  return definition;
}

}  // namespace

SentencePieceModel::SentencePieceModel(SentencePieceFile file) : file_(std::move(file)) {
  for (size_t id = 0; id < file_.pieces.size(); ++id) {
    const SentencePiece& piece = file_.pieces[id];
    if (piece.type == PieceType::kNormal || piece.type == PieceType::kUserDefined) {
      ids_.emplace(piece.text, static_cast<int32_t>(id));
    }
    if (piece.type == PieceType::kUserDefined) {
      user_defined_.Add(piece.text, static_cast<int32_t>(id));
    }
  }
}

Result<std::unique_ptr<TokenModel>> SentencePieceModel::New(SentencePieceFile file) {
  std::unique_ptr<SentencePieceModel> model(new SentencePieceModel(std::move(file)));
  TokenizerDefinition definition = AsUnigram(model->file_);
  // Encoding is handed text that is normalized already; only decoding knows of spaces.
  WEFT_ASSIGN_OR_RETURN(model->unigram_, UnigramModel::New(definition));
  if (model->file_.byte_fallback) {
    std::unordered_map<std::string_view, int32_t> all;
    for (size_t id = 0; id < definition.tokens.size(); ++id) {
      all.emplace(definition.tokens[id], static_cast<int32_t>(id));
    }
    for (int byte = 0; byte < 256; ++byte) {
      model->byte_tokens_.push_back(all.at(BytePiece(byte)));
    }
  }
  return std::unique_ptr<TokenModel>(std::move(model));
}

std::pair<std::string_view, size_t> SentencePieceModel::NormalizePrefix(
    std::string_view text) const {
  if (const size_t size = MatchUserDefined(text); size > 0) return {text.substr(0, size), size};
  if (file_.charsmap) {
    const auto [replacement, size] = file_.charsmap->LongestMatch(text);
    if (size > 0) return {replacement, size};
  }
  const Utf8Char c = ReadUtf8(text, 0);
  const auto size = static_cast<size_t>(c.bytes);
  return {c.valid ? text.substr(0, size) : kReplacement, size};
}

std::string SentencePieceModel::Normalize(std::string_view text, bool at_start) const {
  const bool trim = file_.remove_extra_whitespaces;
  const std::string_view space = file_.escape_whitespaces ? kSpaceSymbol : " ";
  bool after_space = false;
  while (trim && !text.empty()) {
    const auto [part, size] = NormalizePrefix(text);
    if (part != " ") break;
    text.remove_prefix(size);
    after_space = true;
  }
  std::string out;
  if (text.empty()) return out;
  if (file_.prefix_only_first ? after_space : file_.add_dummy_prefix) out += space;
  after_space |= trim && !file_.prefix_only_first;
  while (!text.empty()) {
    auto [part, size] = NormalizePrefix(text);
    while (after_space && part.starts_with(' ')) part.remove_prefix(1);
    for (char c : part) {
      if (c == ' ') {
        out += space;
      } else {
        out += c;
      }
    }
    if (!part.empty()) after_space = part.ends_with(' ');
    if (!trim) after_space = false;
    text.remove_prefix(size);
  }
  while (trim && out.ends_with(space)) out.resize(out.size() - space.size());
  if (file_.prefix_only_first && file_.add_dummy_prefix && at_start && !out.empty() &&
      !out.starts_with(space)) {
    out.insert(0, space);
  }
  return out;
}

Status SentencePieceModel::Encode(std::string_view text, bool at_start,
                                  std::vector<int32_t>& out) const {
  const std::string normalized = Normalize(text, at_start);
  if (normalized.empty()) return OkStatus();
  if (!file_.is_bpe) {
    return static_cast<const UnigramModel&>(*unigram_).EncodeWord(normalized, out);
  }
  EncodeBpe(normalized, out);
  return OkStatus();
}

void SentencePieceModel::Decode(std::span<const int32_t> ids, bool at_start,
                                std::string& out) const {
  // The library drops one space of each piece until something is left of one.
  while (at_start && file_.remove_extra_whitespaces && !ids.empty() &&
         file_.pieces[static_cast<size_t>(ids.front())].text == kSpaceSymbol) {
    ids = ids.subspan(1);
  }
  unigram_->Decode(ids, at_start && (file_.add_dummy_prefix || file_.remove_extra_whitespaces),
                   out);
}

void SentencePieceModel::EncodeBpe(std::string_view text, std::vector<int32_t>& out) const {
  struct Symbol {
    size_t begin = 0;
    size_t size = 0;  ///< 0: merged into the one before.
    bool fixed = false;
    size_t previous = SIZE_MAX;
    size_t next = SIZE_MAX;
  };
  struct Merge {
    float score = 0;
    size_t left = 0;
    size_t right = 0;
    size_t size = 0;
    bool operator<(const Merge& other) const {
      return score != other.score ? score < other.score : left > other.left;
    }
  };
  std::vector<Symbol> symbols;
  for (size_t at = 0; at < text.size();) {
    const size_t fixed = MatchUserDefined(text.substr(at));
    const size_t size = fixed > 0 ? fixed : static_cast<size_t>(ReadUtf8(text, at).bytes);
    const size_t index = symbols.size();
    symbols.push_back({at, size, fixed > 0, index - 1, index + 1});
    at += size;
  }
  symbols.back().next = SIZE_MAX;
  std::priority_queue<Merge> merges;
  auto offer = [&](size_t left, size_t right) {
    if (left == SIZE_MAX || right == SIZE_MAX || symbols[left].fixed || symbols[right].fixed) {
      return;
    }
    const size_t size = symbols[left].size + symbols[right].size;
    auto it = ids_.find(text.substr(symbols[left].begin, size));
    if (it == ids_.end()) return;
    merges.push({file_.pieces[static_cast<size_t>(it->second)].score, left, right, size});
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) offer(i, i + 1);
  while (!merges.empty()) {
    const Merge merge = merges.top();
    merges.pop();
    Symbol& left = symbols[merge.left];
    Symbol& right = symbols[merge.right];
    if (left.size == 0 || right.size == 0 || left.size + right.size != merge.size) continue;
    left.size = merge.size;
    left.next = right.next;
    right.size = 0;
    if (left.next != SIZE_MAX) symbols[left.next].previous = merge.left;
    offer(left.previous, merge.left);
    offer(merge.left, left.next);
  }
  bool after_unknown = false;
  for (size_t i = 0; i < symbols.size(); i = symbols[i].next) {
    const std::string_view piece = text.substr(symbols[i].begin, symbols[i].size);
    auto it = ids_.find(piece);
    const bool unknown = it == ids_.end();
    if (!unknown) {
      out.push_back(it->second);
    } else if (file_.byte_fallback) {
      for (char c : piece) out.push_back(byte_tokens_[static_cast<unsigned char>(c)]);
    } else if (!after_unknown) {
      out.push_back(file_.unknown);
    }
    after_unknown = unknown;
  }
}

}  // namespace weft
