#include "common/formats/vocab_and_merges.h"

#include <algorithm>
#include <string>
#include <utility>

namespace weft {
namespace {

constexpr JsonLimits kLimits = {.bytes = size_t{256} << 20, .depth = 16};

/// Makes a token of the vocabulary a special one, unless the config says what it is like.
void AddSpecial(const Json& vocab, const char* spelling, const TokenizerConfig& config,
                TokenizerDefinition& definition) {
  const auto it = vocab.find(spelling);
  if (it == vocab.end() || HasSpecialToken(config, spelling)) return;
  // RoBERTa's mask takes the space before it.
  definition.added.push_back({.id = it->get<int32_t>(),
                              .content = spelling,
                              .special = true,
                              .lstrip = std::string_view(spelling) == "<mask>"});
}

Status ApplyClass(const TokenizerConfig& config, const Json& vocab,
                  TokenizerDefinition& definition) {
  const std::string base = BaseClass(config);
  if (base == "Qwen2") {
    WordSplit split;
    split.kind = WordSplit::Kind::kRegex;
    WEFT_ASSIGN_OR_RETURN(split.regex, SplitRegex::Compile(RegexOfPattern(SplitPattern::kQwen2)));
    definition.splits = {split};
    definition.normalizer = {NormalForm::kNfc};
    AddSpecial(vocab, "<|endoftext|>", config, definition);
    return OkStatus();
  }
  definition.splits = {Gpt2Split()};
  if (base == "Roberta" || base == "Longformer" || base == "Bart" || base == "LED") {
    for (const char* token : {"<s>", "<pad>", "</s>", "<unk>", "<mask>"}) {
      AddSpecial(vocab, token, config, definition);
    }
    const auto begin = vocab.find("<s>"), end = vocab.find("</s>");
    if (begin == vocab.end() || end == vocab.end()) {
      return ClassError(config, "which needs <s> and </s>; vocab.json has none");
    }
    const auto first = begin->get<int64_t>(), last = end->get<int64_t>();
    definition.form = {.begin = {first}, .end = {last}};
    definition.pair_form = {.begin = {first}, .middle = {last, last}, .end = {last}};
    definition.has_template = true;
    return OkStatus();
  }
  if (base.empty() || base == "GPT2" || base == "GPTNeoX") {
    AddSpecial(vocab, "<|endoftext|>", config, definition);
    return OkStatus();
  }
  return ClassError(
      config,
      "and vocab.json and merges.txt do not say how it splits text. hint: save its "
      "tokenizer.json with `AutoTokenizer.from_pretrained(...).save_pretrained(...)`");
}

}  // namespace

Result<TokenizerDefinition> ParseVocabAndMerges(std::string_view vocab_json,
                                                std::string_view merges_text,
                                                const TokenizerConfig& config) {
  Result<Json> vocab = ParseJson(vocab_json, kLimits);
  if (!vocab.ok()) return vocab.status().WithContext("vocab.json");
  TokenizerDefinition definition;
  if (Status s = tokenizer_json::ReadVocabulary(*vocab, definition.tokens); !s.ok()) {
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
    if (Status s = tokenizer_json::AddMerge(line, definition); !s.ok()) {
      return s.WithContext("merges.txt");
    }
  }
  WEFT_RETURN_IF_ERROR(ApplyClass(config, *vocab, definition));
  if (config.add_prefix_space.value_or(false)) {
    // transformers puts it before GPT-2's pattern and behind that of Qwen2.
    const bool gpt2 = definition.normalizer.empty();
    definition.splits.insert(gpt2 ? definition.splits.begin() : definition.splits.end(),
                             {.kind = WordSplit::Kind::kPrefixSpace});
  }
  return definition;
}

}  // namespace weft
