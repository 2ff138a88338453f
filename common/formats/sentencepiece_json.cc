#include "common/formats/sentencepiece_json.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/formats/charsmap.h"
#include "common/formats/sentencepiece_file.h"
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

/// SentencePiece's order: characters, outer and repeated spaces, the space before the text, spaces
/// as symbols.
Json NormalizerOf(const SentencePieceFile& file) {
  Json steps = Json::array();
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
    steps.push_back({{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}});
    steps.push_back(Replace({{"Regex", " {2,}"}}, " "));
  }
  if (file.add_dummy_prefix) steps.push_back({{"type", "Prepend"}, {"prepend", " "}});
  if (file.escape_whitespaces) steps.push_back(Replace({{"String", " "}}, kSpaceSymbol));
  return steps.empty() ? Json(nullptr) : Sequence("normalizers", steps);
}

Json DecoderOf(const SentencePieceFile& file) {
  Json steps = {
      Replace({{"String", kSpaceSymbol}}, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (file.add_dummy_prefix) {
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  return Sequence("decoders", steps);
}

Json AddedTokens(const SentencePieceFile& file) {
  Json added = Json::array();
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    const SentencePiece& piece = file.pieces[id];
    const bool user_defined = piece.type == PieceType::kUserDefined;
    if (piece.type != PieceType::kControl && piece.type != PieceType::kUnknown && !user_defined) {
      continue;
    }
    added.push_back({{"id", id},
                     {"content", piece.text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", !user_defined}});
  }
  return added;
}

Json UnigramOf(const SentencePieceFile& file) {
  Json vocab = Json::array();
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    const SentencePiece& piece = file.pieces[id];
    // A piece out of use gets a spelling that no text has.
    const std::string text = piece.type == PieceType::kUnused
                                 ? std::string("\0unused", 7) + std::to_string(id)
                                 : piece.text;
    vocab.push_back({text, static_cast<double>(piece.score)});
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
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    vocab[file.pieces[id].text] = id;
    if (file.pieces[id].type == PieceType::kNormal) merged.emplace(file.pieces[id].text, id);
  }
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", file.pieces[static_cast<size_t>(file.unknown)].text},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", true},
          {"byte_fallback", file.byte_fallback},
          {"ignore_merges", false},
          {"vocab", std::move(vocab)},
          {"merges", MergesOf(file, merged)}};
}

}  // namespace

Result<Json> SentencePieceJson(std::string_view model) {
  WEFT_ASSIGN_OR_RETURN(const SentencePieceFile file, ParseSentencePiece(model));
  return Json{{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", AddedTokens(file)},
              {"normalizer", NormalizerOf(file)},
              {"pre_tokenizer", nullptr},
              {"post_processor", nullptr},
              {"decoder", DecoderOf(file)},
              {"model", file.is_bpe ? BpeOf(file) : UnigramOf(file)}};
}

}  // namespace weft
