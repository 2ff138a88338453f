#include "common/formats/tokenizer_components.h"

#include <utility>

#include "common/formats/utf8.h"

namespace weft::tokenizer_json {
namespace {

/// The only regular expression that real normalizers replace by: runs of spaces.
constexpr std::string_view kSpaceRuns = " {2,}";
constexpr std::string_view kFirstSpaces = R"(\A +)";
constexpr std::string_view kLastSpaces = R"( +\z)";
constexpr std::string_view kLastSpaceSymbols = "\xe2\x96\x81+\\z";  // U+2581
constexpr size_t kMaxFormTokens = 16;
constexpr size_t kMaxSteps = 64;

Result<std::string> ReadText(const Json& object, const char* key) {
  const Json& value = Member(object, key);
  if (!value.is_string()) return InvalidError(std::string(key) + " must be a string");
  return value.get<std::string>();
}

Result<NormalizerStep> ReadReplace(const Json& json) {
  const Json& pattern = Member(json, "pattern");
  if (!pattern.is_object()) return InvalidError("a normalizer Replace has no pattern");
  ReplaceNormalizer replace;
  WEFT_ASSIGN_OR_RETURN(replace.to, ReadText(json, "content"));
  const Json& regex = Member(pattern, "Regex");
  if (regex.is_string()) {
    const bool first = regex == kFirstSpaces;
    if (replace.to.empty() && (first || regex == kLastSpaces || regex == kLastSpaceSymbols)) {
      const char* text = regex == kLastSpaceSymbols ? "\xe2\x96\x81" : " ";
      return NormalizerStep(StripNormalizer{.left = first, .right = !first, .text = text});
    }
    if (regex != kSpaceRuns) return Unsupported("the normalizer pattern " + regex.dump());
    replace.from = " ";
    replace.whole_run = true;
    return NormalizerStep(replace);
  }
  WEFT_ASSIGN_OR_RETURN(replace.from, ReadText(pattern, "String"));
  if (replace.from.empty()) return InvalidError("a normalizer Replace has an empty pattern");
  return NormalizerStep(replace);
}

Result<NormalizerStep> ReadBert(const Json& json) {
  BertNormalizer bert;
  WEFT_RETURN_IF_ERROR(ReadFlag(json, "clean_text", bert.clean_text));
  WEFT_RETURN_IF_ERROR(ReadFlag(json, "handle_chinese_chars", bert.handle_chinese_chars));
  WEFT_RETURN_IF_ERROR(ReadFlag(json, "lowercase", bert.lowercase));
  bert.strip_accents = bert.lowercase;
  WEFT_RETURN_IF_ERROR(ReadFlag(json, "strip_accents", bert.strip_accents));
  return NormalizerStep(bert);
}

Result<NormalizerStep> ReadStep(const Json& json) {
  const std::string type = TypeOf(json);
  if (type == "BertNormalizer") return ReadBert(json);
  if (type == "NFC") return NormalizerStep(NormalForm::kNfc);
  if (type == "NFD") return NormalizerStep(NormalForm::kNfd);
  if (type == "NFKC") return NormalizerStep(NormalForm::kNfkc);
  if (type == "NFKD") return NormalizerStep(NormalForm::kNfkd);
  if (type == "Lowercase") return NormalizerStep(LowercaseNormalizer{});
  if (type == "StripAccents") return NormalizerStep(StripAccentsNormalizer{});
  if (type == "Replace") return ReadReplace(json);
  if (type == "Prepend") {
    PrependNormalizer prepend;
    WEFT_ASSIGN_OR_RETURN(prepend.text, ReadText(json, "prepend"));
    return NormalizerStep(prepend);
  }
  if (type == "Strip") {
    StripNormalizer strip;
    WEFT_RETURN_IF_ERROR(ReadFlag(json, "strip_left", strip.left));
    WEFT_RETURN_IF_ERROR(ReadFlag(json, "strip_right", strip.right));
    return NormalizerStep(strip);
  }
  if (type == "Precompiled") {
    WEFT_ASSIGN_OR_RETURN(std::string base64, ReadText(json, "precompiled_charsmap"));
    std::optional<std::string> bytes = DecodeBase64(base64);
    if (!bytes) return InvalidError("precompiled_charsmap is not base64");
    WEFT_ASSIGN_OR_RETURN(Charsmap map, Charsmap::Parse(*bytes));
    return NormalizerStep(std::move(map));
  }
  return Unsupported("the normalizer " + type);
}

Result<WordSplit> ReadMetaspace(const Json& json) {
  WordSplit split;
  split.kind = WordSplit::Kind::kMetaspace;
  WEFT_ASSIGN_OR_RETURN(split.metaspace, ReadText(json, "replacement"));
  if (split.metaspace.empty() ||
      static_cast<size_t>(ReadUtf8(split.metaspace, 0).bytes) != split.metaspace.size()) {
    return InvalidError("the replacement of a Metaspace must be one character");
  }
  WEFT_RETURN_IF_ERROR(ReadFlag(json, "split", split.split));
  bool prefix = true;
  WEFT_RETURN_IF_ERROR(ReadFlag(json, "add_prefix_space", prefix));
  if (!prefix) split.prepend = WordSplit::Prepend::kNever;
  const Json& scheme = Member(json, "prepend_scheme");
  if (scheme == "first") {
    split.prepend = WordSplit::Prepend::kFirst;
  } else if (scheme == "never") {
    split.prepend = WordSplit::Prepend::kNever;
  } else if (!scheme.is_null() && scheme != "always") {
    return Unsupported("the prepend_scheme " + scheme.dump());
  }
  return split;
}

Status ReadBehavior(const Json& json, WordSplit& split) {
  using Behavior = WordSplit::Behavior;
  const Json& behavior = Member(json, "behavior");
  if (behavior.is_null() || behavior == "Isolated") {
    split.behavior = Behavior::kIsolated;
  } else if (behavior == "Removed") {
    split.behavior = Behavior::kRemoved;
  } else if (behavior == "MergedWithPrevious") {
    split.behavior = Behavior::kMergedWithPrevious;
  } else if (behavior == "MergedWithNext") {
    split.behavior = Behavior::kMergedWithNext;
  } else if (behavior == "Contiguous") {
    split.behavior = Behavior::kContiguous;
  } else {
    return Unsupported("the behavior " + behavior.dump() + " of a pre_tokenizer");
  }
  return OkStatus();
}

Result<WordSplit> ReadPatternSplit(const Json& json) {
  WordSplit split;
  WEFT_RETURN_IF_ERROR(ReadBehavior(json, split));
  WEFT_RETURN_IF_ERROR(ReadFlag(json, "invert", split.invert));
  const Json& pattern = Member(json, "pattern");
  if (!pattern.is_object()) return InvalidError("a pre_tokenizer Split has no pattern");
  const Json& regex = Member(pattern, "Regex");
  if (regex.is_string()) {
    split.kind = WordSplit::Kind::kRegex;
    WEFT_ASSIGN_OR_RETURN(split.regex, SplitRegex::Compile(regex.get_ref<const std::string&>()));
    return split;
  }
  split.kind = WordSplit::Kind::kString;
  WEFT_ASSIGN_OR_RETURN(split.delimiter, ReadText(pattern, "String"));
  if (split.delimiter.empty()) return InvalidError("a pre_tokenizer Split has an empty pattern");
  return split;
}

Result<WordSplit> ReadSplit(const Json& json) {
  using Kind = WordSplit::Kind;
  const std::string type = TypeOf(json);
  WordSplit split;
  if (type == "Metaspace") return ReadMetaspace(json);
  if (type == "Split") return ReadPatternSplit(json);
  if (type == "BertPreTokenizer") {
    split.kind = Kind::kBert;
  } else if (type == "Whitespace") {
    split.kind = Kind::kWhitespace;
  } else if (type == "WhitespaceSplit") {
    split.kind = Kind::kWhitespaceSplit;
  } else if (type == "Punctuation") {
    split.kind = Kind::kPunctuation;
    WEFT_RETURN_IF_ERROR(ReadBehavior(json, split));
  } else if (type == "CharDelimiterSplit") {
    split.kind = Kind::kString;
    split.behavior = WordSplit::Behavior::kRemoved;
    WEFT_ASSIGN_OR_RETURN(split.delimiter, ReadText(json, "delimiter"));
    if (split.delimiter.empty()) return InvalidError("a CharDelimiterSplit has no delimiter");
  } else if (type == "Digits") {
    bool each = false;
    WEFT_RETURN_IF_ERROR(ReadFlag(json, "individual_digits", each));
    split.kind = each ? Kind::kEachDigit : Kind::kDigits;
  } else {
    return Unsupported("the pre_tokenizer " + type + " here");
  }
  return split;
}

Result<std::vector<int64_t>> ReadIds(const Json& ids) {
  if (!ids.is_array() || ids.size() > kMaxFormTokens) {
    return InvalidError("a special token of the post_processor needs a list of ids");
  }
  std::vector<int64_t> out;
  for (const Json& id : ids) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= uint64_t{1} << 24) {
      return InvalidError("the post_processor has the token id " + id.dump());
    }
    out.push_back(id.get<int64_t>());
  }
  return out;
}

/// A template of TemplateProcessing: special tokens around texts A and B in this order.
Status ReadTemplate(const Json& parts, const Json& special_tokens, size_t texts,
                    SequenceForm& form) {
  if (!parts.is_array() || parts.size() > kMaxFormTokens) {
    return InvalidError("a template of the post_processor must be a list");
  }
  size_t seen = 0;
  for (const Json& part : parts) {
    const Json& text = part.is_object() ? Member(part, "Sequence") : part;
    const Json& token = part.is_object() ? Member(part, "SpecialToken") : part;
    if (text.is_object()) {
      const char* expected = seen == 0 ? "A" : "B";
      if (Member(text, "id") != expected || ++seen > texts) {
        return Unsupported("a template with texts in another order than A, B");
      }
      if (seen == 2) form.second_type = Member(text, "type_id") == 1;
      continue;
    }
    if (!token.is_object() || !Member(token, "id").is_string()) {
      return InvalidError("a template of the post_processor has a part of no kind");
    }
    const Json& known =
        special_tokens.is_object()
            ? Member(special_tokens, Member(token, "id").get_ref<const std::string&>().c_str())
            : token;
    if (!known.is_object()) return InvalidError("a template names an unknown special token");
    WEFT_ASSIGN_OR_RETURN(std::vector<int64_t> ids, ReadIds(Member(known, "ids")));
    std::vector<int64_t>& place = seen == 0 ? form.begin : seen == texts ? form.end : form.middle;
    place.insert(place.end(), ids.begin(), ids.end());
    if (place.size() > kMaxFormTokens) return InvalidError("a template is too long");
  }
  if (seen != texts) return InvalidError("a template of the post_processor lacks a text");
  return OkStatus();
}

/// BertProcessing and RobertaProcessing: a token before, another after each text.
Status ReadClsAndSep(const Json& json, bool roberta, SequenceForm& single, SequenceForm& pair) {
  auto id_of = [&](const char* key) -> Result<std::vector<int64_t>> {
    const Json& token = Member(json, key);
    if (!token.is_array() || token.size() != 2) {
      return InvalidError(std::string("the post_processor has no ") + key);
    }
    return ReadIds(Json::array({token[1]}));
  };
  WEFT_ASSIGN_OR_RETURN(single.begin, id_of("cls"));
  WEFT_ASSIGN_OR_RETURN(single.end, id_of("sep"));
  pair = single;
  pair.middle = single.end;
  if (roberta) pair.middle.push_back(single.end.front());
  pair.second_type = !roberta;
  return OkStatus();
}

}  // namespace

const Json& Member(const Json& object, const char* key) {
  static const Json absent;
  auto it = object.find(key);
  return it == object.end() ? absent : *it;
}

std::string TypeOf(const Json& component) {
  const Json& type = component.is_object() ? Member(component, "type") : component;
  return type.is_string() ? type.get<std::string>() : "of no type";
}

Status Unsupported(const std::string& what) {
  return {StatusCode::kInvalid,
          what +
              " is not supported. hint: BPE (GPT-2, Llama, Qwen2, GPT-NeoX), WordPiece (BERT) and "
              "Unigram (T5, XLM-R) are; docs/formats.md lists the parts",
          FailureKind::kUnsupported};
}

Status ReadFlag(const Json& object, const char* key, bool& out) {
  const Json& value = Member(object, key);
  if (value.is_null()) return OkStatus();
  if (!value.is_boolean()) return InvalidError(std::string(key) + " must be true or false");
  out = value.get<bool>();
  return OkStatus();
}

Result<std::vector<Json>> Parts(const Json& component, const char* list) {
  if (component.is_null()) return std::vector<Json>{};
  if (TypeOf(component) != "Sequence") return std::vector<Json>{component};
  const Json& parts = Member(component, list);
  if (!parts.is_array()) return InvalidError(std::string("a Sequence has no list ") + list);
  return parts.get<std::vector<Json>>();
}

Result<std::vector<NormalizerStep>> ReadNormalizer(const Json& json) {
  Result<std::vector<Json>> parts = Parts(json, "normalizers");
  if (!parts.ok()) return parts.status().WithContext("normalizer");
  if (parts->size() > kMaxSteps) return Unsupported("a normalizer of this many steps");
  std::vector<NormalizerStep> steps;
  for (const Json& part : *parts) {
    WEFT_ASSIGN_OR_RETURN(NormalizerStep step, ReadStep(part));
    steps.push_back(std::move(step));
  }
  return steps;
}

Result<std::vector<WordSplit>> ReadWordSplits(const std::vector<Json>& parts) {
  if (parts.size() > kMaxSteps) return Unsupported("a pre_tokenizer of this many steps");
  std::vector<WordSplit> splits;
  for (const Json& part : parts) {
    WEFT_ASSIGN_OR_RETURN(WordSplit split, ReadSplit(part));
    splits.push_back(std::move(split));
  }
  return splits;
}

Result<PieceSpelling> ReadSpelling(const Json& decoder, const std::vector<WordSplit>& splits) {
  WEFT_ASSIGN_OR_RETURN(std::vector<Json> parts, Parts(decoder, "decoders"));
  PieceSpelling spelling;
  if (parts.empty()) {
    for (const WordSplit& split : splits) {
      if (split.kind == WordSplit::Kind::kMetaspace) spelling.metaspace = split.metaspace;
    }
    spelling.spaces_between = spelling.metaspace.empty();
    return spelling;
  }
  spelling.drop_first_space = false;
  for (const Json& part : parts) {
    const std::string type = TypeOf(part);
    if (type == "ByteFallback" || type == "Fuse") continue;
    if (type == "Metaspace") {
      WEFT_ASSIGN_OR_RETURN(WordSplit split, ReadMetaspace(part));
      spelling.metaspace = split.metaspace;
      spelling.drop_first_space = split.prepend != WordSplit::Prepend::kNever;
    } else if (type == "Replace" && Member(part, "content") == " " &&
               Member(part, "pattern").is_object()) {
      WEFT_ASSIGN_OR_RETURN(spelling.metaspace, ReadText(Member(part, "pattern"), "String"));
    } else if (type == "Strip" && Member(part, "content") == " ") {
      spelling.drop_first_space = Member(part, "start") != 0;
    } else {
      return Unsupported("the decoder " + type + " here");
    }
  }
  return spelling;
}

Status ReadPostProcessor(const Json& json, SequenceForm& single, SequenceForm& pair) {
  Result<std::vector<Json>> parts = Parts(json, "processors");
  if (!parts.ok()) return parts.status().WithContext("post_processor");
  for (const Json& part : *parts) {
    const std::string type = TypeOf(part);
    if (type == "ByteLevel") continue;
    if (type == "TemplateProcessing") {
      const Json& special = Member(part, "special_tokens");
      single = pair = {};
      WEFT_RETURN_IF_ERROR(ReadTemplate(Member(part, "single"), special, 1, single));
      WEFT_RETURN_IF_ERROR(ReadTemplate(Member(part, "pair"), special, 2, pair));
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
      WEFT_RETURN_IF_ERROR(ReadClsAndSep(part, type == "RobertaProcessing", single, pair));
    } else {
      return Unsupported("the post_processor " + type);
    }
  }
  return OkStatus();
}

}  // namespace weft::tokenizer_json
