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
using tokenizer_json::ReadSpelling;
using tokenizer_json::ReadWordSplits;
using tokenizer_json::TypeOf;
using tokenizer_json::Unsupported;

constexpr JsonLimits kLimits = {.bytes = size_t{256} << 20, .depth = 16};

/// The pre-tokenizer of BPE: any steps, ByteLevel as the last where it is over bytes.
Status ReadPreTokenizer(const Json& json, TokenizerDefinition& definition) {
  WEFT_ASSIGN_OR_RETURN(std::vector<Json> parts, Parts(json, "pretokenizers"));
  definition.byte_level = !parts.empty() && TypeOf(parts.back()) == "ByteLevel";
  const Json byte_level = definition.byte_level ? parts.back() : Json();
  if (definition.byte_level) parts.pop_back();
  WEFT_ASSIGN_OR_RETURN(definition.splits, ReadWordSplits(parts));
  if (!definition.byte_level) return OkStatus();
  bool use_regex = true;
  bool prefix_space = false;
  WEFT_RETURN_IF_ERROR(ReadFlag(byte_level, "use_regex", use_regex));
  WEFT_RETURN_IF_ERROR(ReadFlag(byte_level, "add_prefix_space", prefix_space));
  if (prefix_space) definition.splits.push_back({.kind = WordSplit::Kind::kPrefixSpace});
  if (use_regex) definition.splits.push_back(Gpt2Split());
  return OkStatus();
}

/// A decoder that only one kind of tokenizer has, or none.
Status CheckDecoder(const Json& json, std::string_view known) {
  Result<std::vector<Json>> parts = Parts(json, "decoders");
  if (!parts.ok()) return parts.status().WithContext("decoder");
  for (const Json& part : *parts) {
    if (TypeOf(part) != known) return Unsupported("the decoder " + TypeOf(part) + " here");
  }
  return OkStatus();
}

}  // namespace

Status tokenizer_json::ReadVocabulary(const Json& vocab, std::vector<std::string>& tokens) {
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

Status tokenizer_json::AddMerge(std::string_view line, TokenizerDefinition& definition) {
  size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == line.size() ||
      line.find(' ', space + 1) != std::string_view::npos) {
    return InvalidError("merge " + std::to_string(definition.merges.size()) +
                        " is not two tokens with a space between them");
  }
  definition.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  return OkStatus();
}

namespace {

using tokenizer_json::AddMerge;
using tokenizer_json::ReadVocabulary;

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
  const Json& unknown = Member(model, "unk_token");
  if (!unknown.is_null() && !unknown.is_string()) return InvalidError("unk_token is no string");
  if (unknown.is_string()) definition.unknown_token = unknown.get<std::string>();
  WEFT_RETURN_IF_ERROR(ReadFlag(model, "fuse_unk", definition.fuse_unknown));
  WEFT_RETURN_IF_ERROR(ReadFlag(model, "byte_fallback", definition.byte_fallback));
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
  if (!unknown.is_null()) {
    if (!unknown.is_number_unsigned() || unknown.get<uint64_t>() >= definition.tokens.size()) {
      return InvalidError("the unk_id of a Unigram model must be that of one of its pieces");
    }
    definition.unknown_id = unknown.get<int32_t>();
  }
  return ReadFlag(model, "byte_fallback", definition.byte_fallback);
}

/// The model's kind; old files of BPE leave it out.
Result<TokenizerKind> KindOf(const Json& model) {
  if (!model.is_object()) return InvalidError("there is no model");
  const std::string type = model.contains("type") ? TypeOf(model) : "BPE";
  if (type == "BPE") return TokenizerKind::kBpe;
  if (type == "WordPiece") return TokenizerKind::kWordPiece;
  if (type == "Unigram") return TokenizerKind::kUnigram;
  return Unsupported("the model " + type);
}

Status ReadAddedTokens(const Json& list, TokenizerDefinition& definition) {
  if (list.is_null()) return OkStatus();
  if (!list.is_array()) return InvalidError("added_tokens must be a list");
  for (const Json& json : list) {
    const Json& id = json.is_object() ? Member(json, "id") : json;
    if (!json.is_object() || !Member(json, "content").is_string() || !id.is_number_unsigned() ||
        id.get<uint64_t>() > kMaxTokenId) {
      return InvalidError("an added token must have an id and a content");
    }
    WEFT_ASSIGN_OR_RETURN(AddedToken token, tokenizer_json::ReadAddedToken(json));
    token.id = id.get<int32_t>();
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
  definition.has_template = definition.form.Overhead() > 0 || definition.pair_form.Overhead() > 0;
  const Json& splitter = Member(json, "pre_tokenizer");
  const Json& decoder = Member(json, "decoder");
  if (definition.kind == TokenizerKind::kBpe) {
    WEFT_RETURN_IF_ERROR(ReadPreTokenizer(splitter, definition));
    WEFT_RETURN_IF_ERROR(ReadBpe(model, definition));
  } else {
    WEFT_ASSIGN_OR_RETURN(std::vector<Json> steps, Parts(splitter, "pretokenizers"));
    WEFT_ASSIGN_OR_RETURN(definition.splits, ReadWordSplits(steps));
    const bool unigram = definition.kind == TokenizerKind::kUnigram;
    WEFT_RETURN_IF_ERROR(unigram ? ReadUnigram(model, definition)
                                 : ReadWordPiece(model, definition));
  }
  if (definition.kind == TokenizerKind::kWordPiece) {
    WEFT_RETURN_IF_ERROR(CheckDecoder(decoder, "WordPiece"));
  } else if (definition.kind == TokenizerKind::kBpe && definition.byte_level) {
    WEFT_RETURN_IF_ERROR(CheckDecoder(decoder, "ByteLevel"));
  } else {
    WEFT_ASSIGN_OR_RETURN(definition.spelling, ReadSpelling(decoder, definition.splits));
  }
  return ReadAddedTokens(Member(json, "added_tokens"), definition);
}

}  // namespace

Result<AddedToken> tokenizer_json::ReadAddedToken(const Json& json) {
  AddedToken token;
  if (!json.is_object() || !Member(json, "content").is_string()) {
    return InvalidError("an added token must have a content");
  }
  token.content = json["content"].get<std::string>();
  if (token.content.empty()) return InvalidError("an added token has an empty content");
  WEFT_RETURN_IF_ERROR(ReadFlag(json, "special", token.special));
  WEFT_RETURN_IF_ERROR(ReadFlag(json, "normalized", token.normalized));
  WEFT_RETURN_IF_ERROR(ReadFlag(json, "lstrip", token.lstrip));
  WEFT_RETURN_IF_ERROR(ReadFlag(json, "rstrip", token.rstrip));
  WEFT_RETURN_IF_ERROR(ReadFlag(json, "single_word", token.single_word));
  return token;
}

WordSplit Gpt2Split() {
  static const Result<SplitRegex> regex = SplitRegex::Compile(RegexOfPattern(SplitPattern::kGpt2));
  return {.kind = WordSplit::Kind::kRegex, .regex = *regex};
}

Result<TokenizerDefinition> ParseTokenizerJson(std::string_view text) {
  WEFT_ASSIGN_OR_RETURN(Json json, ParseJson(text, kLimits));
  TokenizerDefinition definition;
  WEFT_RETURN_IF_ERROR(ReadAll(json, definition));
  return definition;
}

}  // namespace weft
