#include "common/formats/tiktoken.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/formats/byte_alphabet.h"
#include "common/formats/charsmap.h"

namespace weft {
namespace {

constexpr size_t kLongestToken = 1024;
constexpr int32_t kSpecialTokens = 256;

/// The special tokens of Llama 3 that have names, by their place; all others are reserved.
const std::vector<std::pair<int32_t, const char*>> kNamed = {
    {0, "<|begin_of_text|>"},   {1, "<|end_of_text|>"},   {4, "<|finetune_right_pad_id|>"},
    {6, "<|start_header_id|>"}, {7, "<|end_header_id|>"}, {8, "<|eom_id|>"},
    {9, "<|eot_id|>"},          {10, "<|python_tag|>"},
};

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
  if (error != std::errc() || stop != end || out.rank < 0 ||
      out.rank > kMaxTokenId - kSpecialTokens || !bytes || bytes->empty() ||
      bytes->size() > kLongestToken) {
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

void AddSpecialTokens(TokenizerDefinition& definition) {
  const auto first = static_cast<int32_t>(definition.tokens.size());
  int32_t reserved = 0;
  auto next = kNamed.begin();
  for (int32_t i = 0; i < kSpecialTokens; ++i) {
    std::string name;
    if (next != kNamed.end() && next->first == i) {
      name = (next++)->second;
    } else {
      name = "<|reserved_special_token_" + std::to_string(reserved++) + "|>";
    }
    definition.added.push_back({.id = first + i, .content = std::move(name), .special = true});
  }
}

}  // namespace

bool LooksLikeTiktoken(std::string_view text) {
  return ReadLine(TakeLine(text)).has_value();
}

Result<TokenizerDefinition> ParseTiktoken(std::string_view text) {
  std::vector<std::string> bytes;  // by rank
  std::unordered_map<std::string, int32_t> ranks;
  for (int64_t number = 1; !text.empty(); ++number) {
    const std::string_view line = TakeLine(text);
    if (line.empty()) continue;
    std::optional<Line> token = ReadLine(line);
    const auto rank = token ? static_cast<size_t>(token->rank) : 0;
    if (!token || rank != bytes.size() || !ranks.emplace(token->bytes, token->rank).second) {
      return InvalidError("line " + std::to_string(number) +
                          " is not a new token in base64 and the next rank, " +
                          std::to_string(bytes.size()));
    }
    bytes.push_back(std::move(token->bytes));
  }
  TokenizerDefinition definition;
  definition.pattern = SplitPattern::kCl100k;
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
  AddSpecialTokens(definition);
  return definition;
}

}  // namespace weft
