#include "common/formats/tiktoken.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/formats/byte_alphabet.h"
#include "common/formats/charsmap.h"
#include "common/sha256.h"

namespace weft {
namespace {

constexpr size_t kLongestToken = 1024;
constexpr size_t kMostHoles = 1024;  ///< Ranks that a file leaves out.

constexpr int32_t kLlama3Tokens = 128000;

const std::vector<PublishedRanks>& AllPublished() {
  static const std::vector<PublishedRanks> all = {
      {"r50k_base",
       "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
       RegexOfPattern(SplitPattern::kGpt2),
       {{50256, "<|endoftext|>"}}},
      {"p50k_base",
       "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069",
       RegexOfPattern(SplitPattern::kGpt2),
       {{50256, "<|endoftext|>"}}},
      {"cl100k_base",
       "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
       RegexOfPattern(SplitPattern::kCl100k),
       {{100257, "<|endoftext|>"},
        {100258, "<|fim_prefix|>"},
        {100259, "<|fim_middle|>"},
        {100260, "<|fim_suffix|>"},
        {100276, "<|endofprompt|>"}}},
      {"o200k_base",
       "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
       SplitRegex::kO200k,
       {{199999, "<|endoftext|>"}, {200018, "<|endofprompt|>"}}},
      // All other special tokens of Llama 3 are reserved.
      {"Llama 3",
       "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55",
       RegexOfPattern(SplitPattern::kCl100k),
       {{kLlama3Tokens, "<|begin_of_text|>"},
        {kLlama3Tokens + 1, "<|end_of_text|>"},
        {kLlama3Tokens + 4, "<|finetune_right_pad_id|>"},
        {kLlama3Tokens + 6, "<|start_header_id|>"},
        {kLlama3Tokens + 7, "<|end_header_id|>"},
        {kLlama3Tokens + 8, "<|eom_id|>"},
        {kLlama3Tokens + 9, "<|eot_id|>"},
        {kLlama3Tokens + 10, "<|python_tag|>"}}},
  };
  return all;
}

struct Line {
  std::string bytes;
  int32_t rank = -1;
};

std::optional<Line> ReadLine(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0) return std::nullopt;
  Line out;
  const char* end = line.data() + line.size();
  const auto [stop, error] = std::from_chars(line.data() + space + 1, end, out.rank);
  std::optional<std::string> bytes = DecodeBase64(line.substr(0, space));
  if (error != std::errc() || stop != end || out.rank < 0 || out.rank > kMaxTokenId || !bytes ||
      bytes->empty() || bytes->size() > kLongestToken) {
    return std::nullopt;
  }
  out.bytes = *std::move(bytes);
  return out;
}

std::string_view TakeLine(std::string_view& text) {
  const size_t end = std::min(text.find('\n'), text.size());
  std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

/// A + after a repetition such as {1,3}: possessive to tiktoken, but one or more times to
/// what reads tokenizer.json.
bool RepeatsPossessively(std::string_view pattern) {
  for (size_t end = pattern.find("}+"); end != std::string_view::npos;
       end = pattern.find("}+", end + 1)) {
    const size_t begin = pattern.substr(0, end).rfind('{');
    const std::string_view count = pattern.substr(begin + 1, end - begin - 1);
    if (begin != std::string_view::npos && !count.empty() &&
        count.find_first_not_of("0123456789,") == std::string_view::npos) {
      return true;
    }
  }
  return false;
}

/// The pattern of the file, as a step of splitting.
Result<WordSplit> FindPattern(const PublishedRanks* known,
                              const std::optional<std::string>& given) {
  WordSplit split;
  split.kind = WordSplit::Kind::kRegex;
  std::string pattern = given.value_or("");
  if (known != nullptr) {
    if (given && *given != known->pattern) {
      return InvalidError(std::string("pattern.txt has another pattern than that of ") +
                          known->name + ", which these ranks are: " + std::string(known->pattern));
    }
    pattern = known->pattern;
  } else if (!given) {
    return InvalidError(
        "these ranks are none of the published vocabularies (r50k_base, p50k_base, cl100k_base, "
        "o200k_base, Llama 3), so how text is split before merging is not known. hint: write the "
        "regular expression into pattern.txt next to the file, its special tokens with their ids "
        "into added_tokens.json, and the \"eos_token\" into tokenizer_config.json");
  }
  if (RepeatsPossessively(pattern)) {
    return InvalidError(
        "pattern.txt has a + behind a repetition in braces. hint: write (?>X{1,3}) for X{1,3}+");
  }
  WEFT_ASSIGN_OR_RETURN(split.regex, SplitRegex::Compile(pattern));
  return split;
}

}  // namespace

const PublishedRanks* FindPublishedRanks(std::string_view sha256) {
  for (const PublishedRanks& each : AllPublished()) {
    if (sha256 == each.sha256) return &each;
  }
  return nullptr;
}

void AddSpecialTokens(const PublishedRanks& known, TokenizerDefinition& definition) {
  for (const PublishedRanks::Special& token : known.special) {
    definition.added.push_back({.id = token.id, .content = token.name, .special = true});
  }
  if (known.special.front().id != kLlama3Tokens) return;
  int32_t reserved = 0;
  for (int32_t id = kLlama3Tokens; id < kLlama3Tokens + 256; ++id) {
    const bool named =
        std::any_of(known.special.begin(), known.special.end(),
                    [&](const PublishedRanks::Special& token) { return token.id == id; });
    if (named) continue;
    definition.added.push_back(
        {.id = id,
         .content = "<|reserved_special_token_" + std::to_string(reserved++) + "|>",
         .special = true});
  }
  definition.form.begin = {kLlama3Tokens};
  definition.pair_form = {.begin = {kLlama3Tokens}, .middle = {kLlama3Tokens}};
  definition.has_template = true;
}

bool LooksLikeTiktoken(std::string_view text) {
  return ReadLine(TakeLine(text)).has_value();
}

Result<TokenizerDefinition> ParseTiktoken(std::string_view text,
                                          const std::optional<std::string>& pattern) {
  const PublishedRanks* known = FindPublishedRanks(Sha256Hex(text));
  std::vector<std::string> bytes;  // by rank
  std::unordered_map<std::string, int32_t> ranks;
  for (int64_t number = 1; !text.empty(); ++number) {
    const std::string_view line = TakeLine(text);
    if (line.empty()) continue;
    std::optional<Line> token = ReadLine(line);
    const auto rank = token ? static_cast<size_t>(token->rank) : 0;
    if (!token || rank < bytes.size() || rank > ranks.size() + kMostHoles ||
        !ranks.emplace(token->bytes, token->rank).second) {
      return InvalidError("line " + std::to_string(number) +
                          " is not a new token in base64 and the next rank, " +
                          std::to_string(bytes.size()));
    }
    bytes.resize(rank);
    bytes.push_back(std::move(token->bytes));
  }
  TokenizerDefinition definition;
  WEFT_ASSIGN_OR_RETURN(WordSplit split, FindPattern(known, pattern));
  definition.splits.push_back(std::move(split));
  definition.ignore_merges = true;
  for (const std::string& token : bytes) {
    std::vector<std::pair<int32_t, int32_t>> pairs;
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ranks.find(token.substr(0, cut));
      if (left == ranks.end()) continue;
      const auto right = ranks.find(token.substr(cut));
      if (right != ranks.end()) pairs.emplace_back(left->second, right->second);
    }
    std::sort(pairs.begin(), pairs.end());
    for (const auto& [left, right] : pairs) {
      definition.merges.emplace_back(BytesToAlphabet(bytes[static_cast<size_t>(left)]),
                                     BytesToAlphabet(bytes[static_cast<size_t>(right)]));
    }
    definition.tokens.push_back(BytesToAlphabet(token));
  }
  if (known != nullptr) AddSpecialTokens(*known, definition);
  return definition;
}

}  // namespace weft
