#include "common/formats/sentencepiece_json.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/formats/charsmap.h"
#include "common/formats/utf8.h"

namespace weft {
namespace {

constexpr char kSpaceSymbol[] = "\xe2\x96\x81";  // U+2581

Json Replace(const Json& pattern, std::string_view content) {
  return {{"type", "Replace"}, {"pattern", pattern}, {"content", content}};
}

Json Sequence(const char* parts, const Json& list) {
  return {{"type", "Sequence"}, {parts, list}};
}

/// User-defined pieces, longest first, so that of several at one place the first is the longest.
std::vector<std::string> UserDefinedPieces(const SentencePieceFile& file) {
  std::vector<std::string> pieces;
  for (const SentencePiece& piece : file.pieces) {
    if (piece.type == PieceType::kUserDefined) pieces.push_back(piece.text);
  }
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const auto& a, const auto& b) { return a.size() > b.size(); });
  return pieces;
}

/// A user-defined piece, and the character that hides it from the character map.
struct HiddenPiece {
  std::string text;
  std::string mark;
};

/// SentencePiece normalizes no user-defined piece, such as a line end that others lose. So those
/// that the character map changes become a character of private use meanwhile, which no piece has.
std::vector<HiddenPiece> HiddenPieces(const SentencePieceFile& file) {
  std::vector<HiddenPiece> hidden;
  if (!file.charsmap) return hidden;
  char32_t mark = 0x10fffd;
  for (const std::string& text : UserDefinedPieces(file)) {
    // One with a space is in no normalized text.
    if (file.charsmap->Apply(text) == text || text.find(' ') != std::string::npos) continue;
    for (bool taken = true; taken; --mark) {
      std::string spelling;
      AppendUtf8(spelling, mark);
      taken = file.charsmap->Apply(spelling) != spelling ||
              std::any_of(file.pieces.begin(), file.pieces.end(), [&](const SentencePiece& piece) {
                return piece.text.find(spelling) != std::string::npos;
              });
      if (!taken) hidden.push_back({text, std::move(spelling)});
    }
  }
  return hidden;
}

/// SentencePiece's order: characters, first and repeated spaces, the space before the text, spaces
/// as symbols, last spaces, where a symbol that the text itself has counts as one.
Json NormalizerOf(const SentencePieceFile& file) {
  Json steps = Json::array();
  const std::vector<HiddenPiece> hidden = HiddenPieces(file);
  for (const HiddenPiece& piece : hidden) {
    steps.push_back(Replace({{"String", piece.text}}, piece.mark));
  }
  if (file.charsmap) {
    // Programs that read this normalize such a pair as one character.
    constexpr std::string_view kLineEnd = "\r\n";
    std::string normal;
    for (size_t at = 0; at < kLineEnd.size();) {
      const auto [text, size] = file.charsmap->LongestMatch(kLineEnd.substr(at));
      normal += size > 0 ? text : kLineEnd.substr(at, 1);
      at += std::max<size_t>(size, 1);
    }
    if (normal != kLineEnd) steps.push_back(Replace({{"String", kLineEnd}}, normal));
    steps.push_back(
        {{"type", "Precompiled"}, {"precompiled_charsmap", EncodeBase64(file.charsmap_bytes)}});
  }
  if (file.remove_extra_whitespaces) {
    // Strip would take line ends, too.
    if (!file.prefix_only_first) steps.push_back(Replace({{"Regex", R"(\A +)"}}, ""));
    steps.push_back(Replace({{"Regex", " {2,}"}}, " "));
  }
  if (file.add_dummy_prefix && !file.prefix_only_first) {
    steps.push_back({{"type", "Prepend"}, {"prepend", " "}});
  }
  if (file.escape_whitespaces) steps.push_back(Replace({{"String", " "}}, kSpaceSymbol));
  for (const HiddenPiece& piece : hidden) {
    steps.push_back(Replace({{"String", piece.mark}}, piece.text));
  }
  if (file.remove_extra_whitespaces) {
    const std::string space = file.escape_whitespaces ? kSpaceSymbol : " ";
    steps.push_back(Replace({{"Regex", space + "+\\z"}}, ""));
  }
  return steps.empty() ? Json(nullptr) : Sequence("normalizers", steps);
}

/// A regular expression of the text.
std::string Escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (std::string_view(R"(\^$.|?*+()[]{}-#&~)").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

/// A normalizer cannot tell where the document starts, and in BPE nothing else keeps a user-defined
/// piece from being merged.
Json PreTokenizerOf(const SentencePieceFile& file) {
  Json steps = Json::array();
  if (file.add_dummy_prefix && file.prefix_only_first) {
    steps.push_back({{"type", "Metaspace"},
                     {"replacement", kSpaceSymbol},
                     {"prepend_scheme", "first"},
                     {"split", false}});
  }
  std::string pieces;
  for (const std::string& text : UserDefinedPieces(file)) {
    pieces += (pieces.empty() ? "" : "|") + Escaped(text);
  }
  if (file.is_bpe && !pieces.empty()) {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", pieces}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  return steps.empty() ? Json(nullptr) : Sequence("pretokenizers", steps);
}

Json DecoderOf(const SentencePieceFile& file) {
  Json steps = {
      Replace({{"String", kSpaceSymbol}}, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (file.add_dummy_prefix) {
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  return Sequence("decoders", steps);
}

Json AddedTokensOf(const SentencePieceFile& file) {
  Json added = Json::array();
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    const SentencePiece& piece = file.pieces[id];
    if (piece.type != PieceType::kControl && piece.type != PieceType::kUnknown) continue;
    added.push_back({{"id", id},
                     {"content", piece.text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  return added;
}

Json UnigramOf(const SentencePieceFile& file) {
  Json vocab = Json::array();
  const std::vector<double> scores = UnigramScores(file);
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    const SentencePiece& piece = file.pieces[id];
    // A piece out of use gets a spelling that no text has.
    const std::string text = piece.type == PieceType::kUnused
                                 ? std::string("\0unused", 7) + std::to_string(id)
                                 : piece.text;
    vocab.push_back({text, scores[id]});
  }
  return {{"type", "Unigram"},
          {"unk_id", file.unknown},
          {"vocab", vocab},
          {"byte_fallback", file.byte_fallback}};
}

/// Every way to make a piece of two others, the best piece first.
Json MergesOf(const SentencePieceFile& file, const std::unordered_map<std::string, size_t>& ids) {
  struct Merge {
    float score = 0;
    size_t id = 0;
    std::string left, right;
  };
  std::vector<Merge> merges;
  for (const auto& [text, id] : ids) {
    for (size_t at = 0; at < text.size();) {
      at += static_cast<size_t>(ReadUtf8(text, at).bytes);
      if (at >= text.size()) break;
      Merge merge{file.pieces[id].score, id, text.substr(0, at), text.substr(at)};
      if (ids.contains(merge.left) && ids.contains(merge.right)) merges.push_back(std::move(merge));
    }
  }
  std::sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
    return std::tuple(-a.score, a.id, a.left.size()) < std::tuple(-b.score, b.id, b.left.size());
  });
  Json list = Json::array();
  for (const Merge& merge : merges) list.push_back({merge.left, merge.right});
  return list;
}

Json BpeOf(const SentencePieceFile& file) {
  Json vocab = Json::object();
  std::unordered_map<std::string, size_t> merged;
  bool user_defined = false;
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    vocab[file.pieces[id].text] = id;
    if (file.pieces[id].type == PieceType::kNormal) merged.emplace(file.pieces[id].text, id);
    user_defined |= file.pieces[id].type == PieceType::kUserDefined;
  }
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", file.pieces[static_cast<size_t>(file.unknown)].text},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", true},
          {"byte_fallback", file.byte_fallback},
          // No merges make a user-defined piece.
          {"ignore_merges", user_defined},
          {"vocab", std::move(vocab)},
          {"merges", MergesOf(file, merged)}};
}

}  // namespace

Json SentencePieceJson(const SentencePieceFile& file) {
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", AddedTokensOf(file)},
          {"normalizer", NormalizerOf(file)},
          {"pre_tokenizer", PreTokenizerOf(file)},
          {"post_processor", nullptr},
          {"decoder", DecoderOf(file)},
          {"model", file.is_bpe ? BpeOf(file) : UnigramOf(file)}};
}

}  // namespace weft
