#include "common/formats/wordpiece.h"

#include <algorithm>
#include <array>
#include <utility>

#include "common/formats/utf8.h"
#include "common/json.h"

namespace weft {
namespace {

size_t CountCharacters(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) {
    at += static_cast<size_t>(ReadUtf8(text, at).bytes);
  }
  return count;
}

/// What the reference implementation does to each " token" of a decoded text.
std::string CleanUp(std::string text) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kRules = {{
      {" .", "."},
      {" ?", "?"},
      {" !", "!"},
      {" ,", ","},
      {" ' ", "'"},
      {" n't", "n't"},
      {" 'm", "'m"},
      {" do not", " don't"},
      {" 's", "'s"},
      {" 've", "'ve"},
      {" 're", "'re"},
  }};
  for (const auto& [from, to] : kRules) {
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at)) {
      text.replace(at, from.size(), to);
      at += to.size();
    }
  }
  return text;
}

}  // namespace

Result<std::unique_ptr<TokenModel>> WordPieceModel::New(const TokenizerDefinition& definition) {
  std::unique_ptr<WordPieceModel> model(new WordPieceModel());
  model->tokens_ = definition.tokens;
  for (size_t id = 0; id < definition.tokens.size(); ++id) {
    if (!definition.tokens[id].empty()) {
      model->ids_.emplace(definition.tokens[id], static_cast<int32_t>(id));
    }
  }
  auto unknown = model->ids_.find(definition.unknown_token);
  if (unknown == model->ids_.end()) {
    return InvalidError("the unknown token " + Json(definition.unknown_token).dump() +
                        " is not in the vocabulary");
  }
  model->unknown_ = unknown->second;
  model->prefix_ = definition.subword_prefix;
  model->splits_ = definition.splits;
  model->max_word_characters_ = definition.max_word_characters;
  return std::unique_ptr<TokenModel>(std::move(model));
}

Status WordPieceModel::Encode(std::string_view text, bool at_start,
                              std::vector<int32_t>& out) const {
  return SplitWords(splits_, text, at_start, [&](std::string_view word) { EncodeWord(word, out); });
}

void WordPieceModel::EncodeWord(std::string_view word, std::vector<int32_t>& out) const {
  const size_t before = out.size();
  auto give_up = [&] {
    out.resize(before);
    out.push_back(unknown_);
  };
  if (CountCharacters(word) > max_word_characters_) return give_up();
  std::string piece;
  for (size_t begin = 0; begin < word.size();) {
    piece = begin > 0 ? prefix_ : "";
    const size_t offset = piece.size();
    piece.append(word, begin);
    for (;;) {
      if (piece.size() == offset) return give_up();
      auto it = ids_.find(piece);
      if (it != ids_.end()) {
        out.push_back(it->second);
        break;
      }
      // Off with the last character: bytes of a sequence begin with 10.
      do {
        piece.pop_back();
      } while (piece.size() > offset &&
               (static_cast<unsigned char>(word[begin + piece.size() - offset]) & 0xc0) == 0x80);
    }
    begin += piece.size() - offset;
  }
}

void WordPieceModel::Decode(std::span<const int32_t> ids, bool at_start, std::string& out) const {
  for (int32_t id : ids) {
    const std::string& token = tokens_[static_cast<size_t>(id)];
    if (at_start) {
      out += CleanUp(token);
    } else if (!prefix_.empty() && token.starts_with(prefix_)) {
      out += CleanUp(token.substr(prefix_.size()));
    } else {
      out += CleanUp(" " + token);
    }
    at_start = false;
  }
}

Result<std::string> WordPieceJson(std::string_view vocab_txt, const TokenizerConfig& config) {
  constexpr std::array<std::string_view, 5> kClasses = {"", "Bert", "DistilBert", "Electra",
                                                        "MobileBert"};
  if (std::find(kClasses.begin(), kClasses.end(), BaseClass(config)) == kClasses.end()) {
    return ClassError(config, "which is not one of BERT's that a vocab.txt is read for");
  }
  Json vocab = Json::object();
  bool lowercase = true;
  int64_t id = 0;
  for (; !vocab_txt.empty(); ++id) {
    const size_t end = std::min(vocab_txt.find('\n'), vocab_txt.size());
    std::string_view line = vocab_txt.substr(0, end);
    vocab_txt.remove_prefix(std::min(end + 1, vocab_txt.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    if (id > kMaxTokenId || CountInvalidUtf8(line) > 0) {
      return InvalidError("line " + std::to_string(id + 1) +
                          " is no token of a vocab.txt. hint: a token a line in UTF-8");
    }
    const bool special = line.starts_with('[') && line.ends_with(']') && line.size() > 2;
    lowercase &= special || std::none_of(line.begin(), line.end(),
                                         [](char c) { return c >= 'A' && c <= 'Z'; });
    if (!vocab.emplace(std::string(line), id).second) {
      return InvalidError("the vocabulary holds " + Json(std::string(line)).dump() + " twice");
    }
  }
  Json added = Json::array();
  for (const char* name : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) {
    auto it = vocab.find(name);
    if (it != vocab.end()) {
      added.push_back({{"id", *it},
                       {"content", name},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
    } else if (std::string_view(name) != "[PAD]" && std::string_view(name) != "[MASK]") {
      return InvalidError(std::string("the vocabulary has no token ") + name);
    }
  }
  std::stable_sort(added.begin(), added.end(),
                   [](const Json& a, const Json& b) { return a["id"] < b["id"]; });
  const Json accents = config.strip_accents ? Json(*config.strip_accents) : Json();
  const Json json = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", added},
                     {"normalizer",
                      {{"type", "BertNormalizer"},
                       {"clean_text", true},
                       {"handle_chinese_chars", config.tokenize_chinese_chars.value_or(true)},
                       {"strip_accents", accents},
                       {"lowercase", config.do_lower_case.value_or(lowercase)}}},
                     {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
                     {"post_processor",
                      {{"type", "BertProcessing"},
                       {"sep", {"[SEP]", vocab["[SEP]"]}},
                       {"cls", {"[CLS]", vocab["[CLS]"]}}}},
                     {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
                     {"model",
                      {{"type", "WordPiece"},
                       {"unk_token", "[UNK]"},
                       {"continuing_subword_prefix", "##"},
                       {"max_input_chars_per_word", 100},
                       {"vocab", vocab}}}};
  return json.dump() + "\n";
}

}  // namespace weft
