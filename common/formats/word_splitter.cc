#include "common/formats/word_splitter.h"

#include <algorithm>
#include <utility>

#include "common/formats/unicode.h"
#include "common/formats/utf8.h"

namespace weft {
namespace {

struct Word {
  std::string text;
  bool first = false;  ///< It begins its document.
};

/// What a character does to the cutting: it goes, it stands alone, or it joins a run of its kind.
enum class Role : uint8_t { kGone, kAlone, kRun, kOtherRun };

Role RoleOf(WordSplit::Kind kind, char32_t c) {
  using Kind = WordSplit::Kind;
  switch (kind) {
    case Kind::kBert:
      return IsUnicodeSpace(c) ? Role::kGone : IsUnicodePunctuation(c) ? Role::kAlone : Role::kRun;
    case Kind::kWhitespace:
      if (IsUnicodeWord(c)) return Role::kRun;
      return IsUnicodeSpace(c) ? Role::kGone : Role::kOtherRun;
    case Kind::kWhitespaceSplit:
      return IsUnicodeSpace(c) ? Role::kGone : Role::kRun;
    case Kind::kPunctuation:
      return IsUnicodePunctuation(c) ? Role::kAlone : Role::kRun;
    case Kind::kDigits:
      return IsUnicodeNumber(c) ? Role::kOtherRun : Role::kRun;
    case Kind::kEachDigit:
      return IsUnicodeNumber(c) ? Role::kAlone : Role::kRun;
    case Kind::kMetaspace:
      break;
  }
  return Role::kRun;
}

void SplitByRole(WordSplit::Kind kind, const Word& word, std::vector<Word>& out) {
  const std::string_view text = word.text;
  Role before = Role::kGone;
  size_t begin = 0;
  auto close = [&](size_t end) {
    if (begin < end && before != Role::kGone) {
      out.push_back({std::string(text.substr(begin, end - begin)), word.first && begin == 0});
    }
    begin = end;
  };
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = ReadUtf8(text, at);
    const Role role = RoleOf(kind, c.code);
    if (role != before || role == Role::kAlone) close(at);
    before = role;
    at += static_cast<size_t>(c.bytes);
  }
  close(text.size());
}

void SplitByMetaspace(const WordSplit& step, const Word& word, std::vector<Word>& out) {
  std::string text;
  for (char c : word.text) {
    if (c == ' ') {
      text += step.metaspace;
    } else {
      text += c;
    }
  }
  const bool wanted = step.prepend == WordSplit::Prepend::kAlways ||
                      (step.prepend == WordSplit::Prepend::kFirst && word.first);
  if (wanted && !text.starts_with(step.metaspace)) text.insert(0, step.metaspace);
  for (size_t begin = 0; begin < text.size();) {
    size_t end = step.split ? text.find(step.metaspace, begin + 1) : std::string::npos;
    end = std::min(end, text.size());
    out.push_back({text.substr(begin, end - begin), word.first && begin == 0});
    begin = end;
  }
}

}  // namespace

std::vector<std::string> SplitWords(const std::vector<WordSplit>& steps, std::string_view text,
                                    bool at_start) {
  std::vector<Word> words;
  if (!text.empty()) words.push_back({std::string(text), at_start});
  for (const WordSplit& step : steps) {
    std::vector<Word> next;
    for (const Word& word : words) {
      if (step.kind == WordSplit::Kind::kMetaspace) {
        SplitByMetaspace(step, word, next);
      } else {
        SplitByRole(step.kind, word, next);
      }
    }
    words = std::move(next);
  }
  std::vector<std::string> out;
  out.reserve(words.size());
  for (Word& word : words) out.push_back(std::move(word.text));
  return out;
}

}  // namespace weft
