#include "worker/engine/data/spelled_tokens.h"

#include <algorithm>
#include <span>

namespace weft::engine {
namespace {

bool IsPunctuation(char c) {
  return c > ' ' && c < 0x7f &&
         !((c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'));
}

}  // namespace

SpelledTokens::SpelledTokens(const Tokenizer& tokenizer) {
  for (const int32_t id : tokenizer.special_tokens()) {
    const Result<std::string> spelled = tokenizer.Decode(std::span(&id, 1));
    if (!spelled.ok() || spelled->empty()) continue;
    by_first_byte_[static_cast<unsigned char>(spelled->front())].push_back(*spelled);
    may_cut_ = may_cut_ && spelled->find(' ') == std::string::npos &&
               IsPunctuation(spelled->front()) && IsPunctuation(spelled->back());
  }
  for (std::vector<std::string>& spellings : by_first_byte_) {
    std::sort(spellings.begin(), spellings.end(),
              [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
  }
}

uint64_t SpelledTokens::Count(std::string_view text, std::string& example) const {
  uint64_t count = 0;
  for (size_t at = 0; at < text.size();) {
    size_t step = 1;
    for (const std::string& spelled : by_first_byte_[static_cast<unsigned char>(text[at])]) {
      if (!text.substr(at).starts_with(spelled)) continue;
      if (example.empty()) example = spelled;
      step = spelled.size();
      ++count;
      break;
    }
    at += step;
  }
  return count;
}

}  // namespace weft::engine
