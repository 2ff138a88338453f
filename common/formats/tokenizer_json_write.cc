// WriteTokenizerJson.
#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/formats/tokenizer_json.h"

namespace weft {
namespace {

/// The steps of `splits`; the last ones may go into a ByteLevel.
Json PreTokenizerJson(std::vector<WordSplit> splits) {
  auto ends_with = [&](WordSplit::Kind kind) {
    return !splits.empty() && splits.back().kind == kind;
  };
  const bool gpt2 = ends_with(WordSplit::Kind::kRegex) &&
                    splits.back().regex->regex() == RegexOfPattern(SplitPattern::kGpt2);
  if (gpt2) splits.pop_back();
  const bool prefix_space = ends_with(WordSplit::Kind::kPrefixSpace);
  if (prefix_space) splits.pop_back();
  Json byte_level = {{"type", "ByteLevel"},
                     {"add_prefix_space", prefix_space},
                     {"trim_offsets", true},
                     {"use_regex", gpt2}};
  if (splits.empty()) return byte_level;
  Json parts = Json::array();
  for (const WordSplit& split : splits) {
    WEFT_CHECK(split.regex.has_value(), "before ByteLevel only patterns are written");
    parts.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", split.regex->regex()}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  parts.push_back(byte_level);
  return {{"type", "Sequence"}, {"pretokenizers", parts}};
}

/// A template of the tokens around a text, or two.
Json PostProcessorJson(const TokenizerDefinition& definition) {
  if (definition.form.Overhead() == 0) return nullptr;
  return tokenizer_json::TemplateJson(definition.form, definition.pair_form, [&](int64_t id) {
    for (const AddedToken& token : definition.added) {
      if (token.id == id) return token.content;
    }
    return definition.tokens[static_cast<size_t>(id)];
  });
}

}  // namespace

Json tokenizer_json::TemplateJson(const SequenceForm& single, const SequenceForm& pair,
                                  const std::function<std::string(int64_t)>& spelling) {
  Json special = Json::object();
  auto add = [&](Json& list, const std::vector<int64_t>& ids, int type) {
    for (int64_t id : ids) {
      const std::string name = spelling(id);
      special[name] = {{"id", name}, {"ids", {id}}, {"tokens", {name}}};
      list.push_back({{"SpecialToken", {{"id", name}, {"type_id", type}}}});
    }
  };
  auto text = [](Json& list, const char* name, int type) {
    list.push_back({{"Sequence", {{"id", name}, {"type_id", type}}}});
  };
  const int second = pair.second_type ? 1 : 0;
  Json one = Json::array();
  Json two = Json::array();
  add(one, single.begin, 0);
  text(one, "A", 0);
  add(one, single.end, 0);
  add(two, pair.begin, 0);
  text(two, "A", 0);
  add(two, pair.middle, 0);
  text(two, "B", second);
  add(two, pair.end, second);
  return {
      {"type", "TemplateProcessing"}, {"single", one}, {"pair", two}, {"special_tokens", special}};
}

Json tokenizer_json::AddedTokenJson(const AddedToken& token) {
  return {{"id", token.id},
          {"content", token.content},
          {"lstrip", token.lstrip},
          {"rstrip", token.rstrip},
          {"special", token.special},
          {"normalized", token.normalized},
          {"single_word", token.single_word}};
}

std::string WriteTokenizerJson(const TokenizerDefinition& definition) {
  std::string out = "{\n\"version\":\"1.0\",\n\"truncation\":null,\n\"padding\":null,\n";
  out += "\"added_tokens\":[";
  std::vector<AddedToken> added = definition.added;
  std::sort(added.begin(), added.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  for (size_t i = 0; i < added.size(); ++i) {
    out += (i > 0 ? ",\n" : "\n") + tokenizer_json::AddedTokenJson(added[i]).dump();
  }
  out += "],\n\"normalizer\":";
  out += definition.normalizer.empty() ? "null" : R"({"type":"NFC"})";
  out += ",\n\"pre_tokenizer\":" + PreTokenizerJson(definition.splits).dump();
  out += ",\n\"post_processor\":" + PostProcessorJson(definition).dump() + ",\n\"decoder\":";
  out += R"({"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true})";
  out += ",\n\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,";
  out += "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,";
  out += "\"byte_fallback\":false,\"ignore_merges\":";
  out += definition.ignore_merges ? "true" : "false";
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
