#include "common/formats/tokenizer_json.h"

#include <optional>

#include "common/formats/tokenizer_components.h"
#include "common/json.h"

namespace weft {
namespace {

using tokenizer_json::Member;
using tokenizer_json::Parts;
using tokenizer_json::ReadFlag;
using tokenizer_json::ReadNormalizer;
using tokenizer_json::ReadPostProcessor;
using tokenizer_json::ReadWordSplits;
using tokenizer_json::TypeOf;
using tokenizer_json::Unsupported;

constexpr JsonLimits kLimits = {.bytes = size_t{256} << 20, .depth = 16};
constexpr std::string_view kEndOfText = "<|endoftext|>";

Status ReadSplit(const Json& split, SplitPattern& pattern) {
  const Json& source = Member(split, "pattern");
  if (!source.is_object()) return InvalidError("a pre_tokenizer Split has no pattern");
  const Json& regex = Member(source, "Regex");
  bool invert = false;
  WEFT_RETURN_IF_ERROR(ReadFlag(split, "invert", invert));
  const Json& behavior = Member(split, "behavior");
  if (!regex.is_string() || behavior != "Isolated" || invert) {
    return Unsupported("a pre_tokenizer Split other than by an isolated Regex");
  }
  std::optional<SplitPattern> known = PatternOfRegex(regex.get_ref<const std::string&>());
  if (!known) return Unsupported("the pre_tokenizer pattern " + regex.dump());
  pattern = *known;
  return OkStatus();
}

Status ReadPreTokenizer(const Json& json, TokenizerDefinition& definition) {
  WEFT_ASSIGN_OR_RETURN(std::vector<Json> parts, Parts(json, "pretokenizers"));
  definition.pattern = SplitPattern::kNone;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string type = TypeOf(parts[i]);
    bool last = i + 1 == parts.size();
    if (type == "Split" && i == 0 && !last) {
      WEFT_RETURN_IF_ERROR(ReadSplit(parts[i], definition.pattern));
      continue;
    }
    if (type != "ByteLevel" || !last) return Unsupported("the pre_tokenizer " + type + " here");
    bool use_regex = true;
    WEFT_RETURN_IF_ERROR(ReadFlag(parts[i], "use_regex", use_regex));
    WEFT_RETURN_IF_ERROR(ReadFlag(parts[i], "add_prefix_space", definition.add_prefix_space));
    if (i > 0 && (use_regex || definition.add_prefix_space)) {
      return Unsupported("a ByteLevel pre_tokenizer that splits or adds a space after a Split");
    }
    if (use_regex) definition.pattern = SplitPattern::kGpt2;
    return OkStatus();
  }
  return Unsupported("a tokenizer without a ByteLevel pre_tokenizer");
}

/// Components that change no id of plain text must still be ones we know.
Status CheckHarmless(const Json& json, const char* name, const char* list,
                     const std::vector<std::string_view>& known) {
  Result<std::vector<Json>> parts = Parts(json, list);
  if (!parts.ok()) return parts.status().WithContext(name);
  for (const Json& part : *parts) {
    const std::string type = TypeOf(part);
    bool found = false;
    for (std::string_view candidate : known) found |= candidate == type;
    if (!found) return Unsupported(std::string("the ") + name + " " + type);
  }
  return OkStatus();
}

Status ReadVocabulary(const Json& vocab, std::vector<std::string>& tokens) {
  if (!vocab.is_object()) return InvalidError("the vocabulary must be an object");
  for (const auto& [token, id] : vocab.items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > kMaxTokenId) {
      return InvalidError("token " + Json(token).dump() + " has the id " + id.dump() +
                          "; ids are whole numbers up to " + std::to_string(kMaxTokenId));
    }
    if (token.empty()) return InvalidError("the vocabulary has an empty token");
    auto at = id.get<size_t>();
    if (at >= tokens.size()) tokens.resize(at + 1);
    if (!tokens[at].empty()) {
      return InvalidError("tokens " + Json(tokens[at]).dump() + " and " + Json(token).dump() +
                          " share the id " + std::to_string(at));
    }
    tokens[at] = token;
  }
  return OkStatus();
}

Status AddMerge(std::string_view line, TokenizerDefinition& definition) {
  size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == line.size() ||
      line.find(' ', space + 1) != std::string_view::npos) {
    return InvalidError("merge " + std::to_string(definition.merges.size()) +
                        " is not two tokens with a space between them");
  }
  definition.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  return OkStatus();
}

Status ReadMerges(const Json& merges, TokenizerDefinition& definition) {
  if (!merges.is_array()) return InvalidError("the model has no list of merges");
  for (const Json& merge : merges) {
    if (merge.is_string()) {
      WEFT_RETURN_IF_ERROR(AddMerge(merge.get_ref<const std::string&>(), definition));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      definition.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    } else {
      return InvalidError("merge " + std::to_string(definition.merges.size()) +
                          " is neither a string nor a pair of strings");
    }
  }
  return OkStatus();
}

Status ReadBpe(const Json& model, TokenizerDefinition& definition) {
  if (const Json& dropout = Member(model, "dropout"); !dropout.is_null() && dropout != 0.0) {
    return Unsupported("BPE dropout");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json& affix = Member(model, key);
    if (!affix.is_null() && affix != "") return Unsupported(std::string("a model with ") + key);
  }
  bool byte_fallback = false;
  WEFT_RETURN_IF_ERROR(ReadFlag(model, "byte_fallback", byte_fallback));
  if (byte_fallback) return Unsupported("byte_fallback");
  WEFT_RETURN_IF_ERROR(ReadFlag(model, "ignore_merges", definition.ignore_merges));
  WEFT_RETURN_IF_ERROR(ReadVocabulary(Member(model, "vocab"), definition.tokens));
  return ReadMerges(Member(model, "merges"), definition);
}

Status ReadWordPiece(const Json& model, TokenizerDefinition& definition) {
  const Json& unknown = Member(model, "unk_token");
  const Json& prefix = Member(model, "continuing_subword_prefix");
  const Json& longest = Member(model, "max_input_chars_per_word");
  if (!unknown.is_string() || !(prefix.is_null() || prefix.is_string()) ||
      !(longest.is_null() || longest.is_number_unsigned())) {
    return InvalidError(
        "a WordPiece model needs unk_token, continuing_subword_prefix and "
        "max_input_chars_per_word");
  }
  definition.unknown_token = unknown.get<std::string>();
  if (prefix.is_string()) definition.subword_prefix = prefix.get<std::string>();
  if (!longest.is_null()) definition.max_word_characters = longest.get<size_t>();
  return ReadVocabulary(Member(model, "vocab"), definition.tokens);
}

Status ReadUnigram(const Json& model, TokenizerDefinition& definition) {
  const Json& vocab = Member(model, "vocab");
  if (!vocab.is_array() || vocab.size() > kMaxTokenId) {
    return InvalidError("a Unigram model needs a list of pieces with scores");
  }
  for (const Json& entry : vocab) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
      return InvalidError("piece " + std::to_string(definition.tokens.size()) +
                          " is not a string with a score");
    }
    definition.tokens.push_back(entry[0].get<std::string>());
    definition.scores.push_back(entry[1].get<double>());
  }
  const Json& unknown = Member(model, "unk_id");
  if (!unknown.is_number_unsigned() || unknown.get<uint64_t>() >= definition.tokens.size()) {
    return InvalidError("a Unigram model needs the unk_id of one of its pieces");
  }
  definition.unknown_id = unknown.get<int32_t>();
  return ReadFlag(model, "byte_fallback", definition.byte_fallback);
}

/// The model's kind; old files of BPE leave it out.
Result<TokenizerKind> KindOf(const Json& model) {
  if (!model.is_object()) return InvalidError("there is no model");
  const std::string type = model.contains("type") ? TypeOf(model) : "BPE";
  if (type == "BPE") return TokenizerKind::kByteBpe;
  if (type == "WordPiece") return TokenizerKind::kWordPiece;
  if (type == "Unigram") return TokenizerKind::kUnigram;
  return Unsupported("the model " + type);
}

Status ReadAddedTokens(const Json& list, TokenizerDefinition& definition) {
  if (list.is_null()) return OkStatus();
  if (!list.is_array()) return InvalidError("added_tokens must be a list");
  for (const Json& json : list) {
    const Json& id = json.is_object() ? Member(json, "id") : json;
    if (!id.is_number_unsigned() || id.get<uint64_t>() > kMaxTokenId ||
        !Member(json, "content").is_string()) {
      return InvalidError("an added token must have an id and a content");
    }
    AddedToken token;
    token.id = id.get<int32_t>();
    token.content = json["content"].get<std::string>();
    if (token.content.empty()) return InvalidError("an added token has an empty content");
    WEFT_RETURN_IF_ERROR(ReadFlag(json, "special", token.special));
    WEFT_RETURN_IF_ERROR(ReadFlag(json, "normalized", token.normalized));
    WEFT_RETURN_IF_ERROR(ReadFlag(json, "lstrip", token.lstrip));
    WEFT_RETURN_IF_ERROR(ReadFlag(json, "rstrip", token.rstrip));
    bool single_word = false;
    WEFT_RETURN_IF_ERROR(ReadFlag(json, "single_word", single_word));
    if (single_word) {
      return Unsupported("the added token " + json["content"].dump() + " with single_word");
    }
    definition.added.push_back(std::move(token));
  }
  return OkStatus();
}

Status ReadAll(const Json& json, TokenizerDefinition& definition) {
  if (!json.is_object()) return InvalidError("it is not a JSON object");
  if (Member(json, "version") != "1.0") {
    return Unsupported("version " + Member(json, "version").dump());
  }
  const Json& model = Member(json, "model");
  WEFT_ASSIGN_OR_RETURN(definition.kind, KindOf(model));
  WEFT_ASSIGN_OR_RETURN(definition.normalizer, ReadNormalizer(Member(json, "normalizer")));
  WEFT_RETURN_IF_ERROR(
      ReadPostProcessor(Member(json, "post_processor"), definition.form, definition.pair_form));
  const Json& splitter = Member(json, "pre_tokenizer");
  const Json& decoder = Member(json, "decoder");
  if (definition.kind == TokenizerKind::kByteBpe) {
    WEFT_RETURN_IF_ERROR(CheckHarmless(decoder, "decoder", "decoders", {"ByteLevel"}));
    WEFT_RETURN_IF_ERROR(ReadPreTokenizer(splitter, definition));
    WEFT_RETURN_IF_ERROR(ReadBpe(model, definition));
  } else if (definition.kind == TokenizerKind::kWordPiece) {
    WEFT_RETURN_IF_ERROR(CheckHarmless(decoder, "decoder", "decoders", {"WordPiece"}));
    WEFT_ASSIGN_OR_RETURN(definition.splits, ReadWordSplits(splitter));
    WEFT_RETURN_IF_ERROR(ReadWordPiece(model, definition));
  } else {
    WEFT_RETURN_IF_ERROR(CheckHarmless(decoder, "decoder", "decoders",
                                       {"Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}));
    WEFT_ASSIGN_OR_RETURN(definition.splits, ReadWordSplits(splitter));
    WEFT_RETURN_IF_ERROR(ReadUnigram(model, definition));
  }
  return ReadAddedTokens(Member(json, "added_tokens"), definition);
}

std::string Quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string FlagText(bool value) {
  return value ? "true" : "false";
}

std::string PreTokenizerJson(const TokenizerDefinition& definition) {
  const std::string tail = R"(,"trim_offsets":true,"use_regex":)";
  const std::string byte_level =
      R"({"type":"ByteLevel","add_prefix_space":)" + FlagText(definition.add_prefix_space) + tail;
  if (definition.pattern == SplitPattern::kGpt2) return byte_level + "true}";
  if (definition.pattern == SplitPattern::kNone) return byte_level + "false}";
  return R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":)" +
         Quoted(std::string(RegexOfPattern(definition.pattern))) +
         R"(},"behavior":"Isolated","invert":false},)" + byte_level + "false}]}";
}

}  // namespace

Result<TokenizerDefinition> ParseTokenizerJson(std::string_view text) {
  WEFT_ASSIGN_OR_RETURN(Json json, ParseJson(text, kLimits));
  TokenizerDefinition definition;
  WEFT_RETURN_IF_ERROR(ReadAll(json, definition));
  return definition;
}

Result<TokenizerDefinition> ParseVocabAndMerges(std::string_view vocab_json,
                                                std::string_view merges_text) {
  Result<Json> vocab = ParseJson(vocab_json, kLimits);
  if (!vocab.ok()) return vocab.status().WithContext("vocab.json");
  TokenizerDefinition definition;
  if (Status s = ReadVocabulary(*vocab, definition.tokens); !s.ok()) {
    return s.WithContext("vocab.json");
  }
  bool first = true;
  while (!merges_text.empty()) {
    size_t end = std::min(merges_text.find('\n'), merges_text.size());
    std::string_view line = merges_text.substr(0, end);
    merges_text.remove_prefix(std::min(end + 1, merges_text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    bool version = std::exchange(first, false) && line.starts_with("#version");
    if (version || line.empty()) continue;
    if (Status s = AddMerge(line, definition); !s.ok()) return s.WithContext("merges.txt");
  }
  if (auto it = vocab->find(kEndOfText); it != vocab->end()) {
    definition.added.push_back(
        {.id = it->get<int32_t>(), .content = std::string(kEndOfText), .special = true});
  }
  return definition;
}

std::string WriteTokenizerJson(const TokenizerDefinition& definition) {
  std::string out = "{\n\"version\":\"1.0\",\n\"truncation\":null,\n\"padding\":null,\n";
  out += "\"added_tokens\":[";
  for (size_t i = 0; i < definition.added.size(); ++i) {
    const AddedToken& token = definition.added[i];
    out += (i > 0 ? ",\n" : "\n") + std::string("{\"id\":") + std::to_string(token.id) +
           ",\"content\":" + Quoted(token.content) +
           R"(,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":)" +
           FlagText(token.special) + "}";
  }
  out += "],\n\"normalizer\":null,\n\"pre_tokenizer\":" + PreTokenizerJson(definition);
  out += ",\n\"post_processor\":null,\n\"decoder\":";
  out += R"({"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true})";
  out += ",\n\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,";
  out += "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,";
  out += "\"byte_fallback\":false,\"ignore_merges\":" + FlagText(definition.ignore_merges);
  out += ",\n\"vocab\":{";
  bool first = true;
  for (size_t id = 0; id < definition.tokens.size(); ++id) {
    if (definition.tokens[id].empty()) continue;
    out += std::exchange(first, false) ? "\n" : ",\n";
    out += Quoted(definition.tokens[id]) + ":" + std::to_string(id);
  }
  out += "},\n\"merges\":[";
  for (size_t i = 0; i < definition.merges.size(); ++i) {
    const auto& [left, right] = definition.merges[i];
    out += (i > 0 ? ",\n" : "\n") + Quoted(left + " " + right);
  }
  return out + "]}\n}\n";
}

}  // namespace weft
