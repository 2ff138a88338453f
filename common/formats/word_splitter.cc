#include "common/formats/word_splitter.h"

#include <algorithm>
#include <utility>

#include "common/formats/unicode.h"
#include "common/formats/utf8.h"

namespace weft {
namespace {

/// What a character does to the cutting: it goes, it is alone, or it joins a run of its kind.
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
    case Kind::kDigits:
      return IsUnicodeNumber(c) ? Role::kOtherRun : Role::kRun;
    case Kind::kEachDigit:
      return IsUnicodeNumber(c) ? Role::kAlone : Role::kRun;
    default:
      return Role::kRun;
  }
}

/// Calls `each(begin, end)` for the words of `text`.
template <class Each>
void SplitByRole(WordSplit::Kind kind, std::string_view text, Each&& each) {
  Role before = Role::kGone;
  size_t begin = 0;
  auto close = [&](size_t end) {
    if (begin < end && before != Role::kGone) each(begin, end);
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

/// Puts matches and what is between them, which come in order and leave nothing out, together to
/// words.
template <class Each>
class MatchMerger {
 public:
  MatchMerger(WordSplit::Behavior behavior, Each& each) : behavior_(behavior), each_(each) {}

  void Add(size_t begin, size_t end, bool match) {
    using Behavior = WordSplit::Behavior;
    const bool after_match = std::exchange(last_is_match_, match);
    const bool joins = (behavior_ == Behavior::kMergedWithPrevious && match && !after_match) ||
                       (behavior_ == Behavior::kMergedWithNext && !match && after_match) ||
                       (behavior_ == Behavior::kContiguous && match == after_match);
    if (!joins || !open_) {
      Close();
      begin_ = begin;
    }
    end_ = end;
    open_ = true;
    if (behavior_ == Behavior::kRemoved && match) open_ = false;
  }
  void Close() {
    if (std::exchange(open_, false)) each_(begin_, end_);
  }

 private:
  WordSplit::Behavior behavior_;
  Each& each_;
  bool last_is_match_ = false;
  bool open_ = false;
  size_t begin_ = 0, end_ = 0;
};

template <class Each>
Status SplitByMatch(const WordSplit& step, std::string_view text, Each&& each) {
  MatchMerger merger(step.behavior, each);
  auto add = [&](size_t begin, size_t end, bool match) {
    merger.Add(begin, end, match != step.invert);
  };
  if (step.kind == WordSplit::Kind::kRegex) {
    WEFT_RETURN_IF_ERROR(step.regex->ForEach(text, [&](std::string_view piece, bool match) {
      const auto begin = static_cast<size_t>(piece.data() - text.data());
      add(begin, begin + piece.size(), match);
    }));
  } else if (step.kind == WordSplit::Kind::kString) {
    size_t done = 0;
    for (size_t at = 0; (at = text.find(step.delimiter, done)) != std::string_view::npos;) {
      if (done < at) add(done, at, false);
      done = at + step.delimiter.size();
      add(at, done, true);
    }
    if (done < text.size()) add(done, text.size(), false);
  } else {
    size_t done = 0;
    for (size_t at = 0; at < text.size();) {
      const Utf8Char c = ReadUtf8(text, at);
      const size_t next = at + static_cast<size_t>(c.bytes);
      if (IsUnicodePunctuation(c.code)) {
        if (done < at) add(done, at, false);
        add(at, next, true);
        done = next;
      }
      at = next;
    }
    if (done < text.size()) add(done, text.size(), false);
  }
  merger.Close();
  return OkStatus();
}

/// `text` with its spaces, and where wanted its begin, as metaspaces.
std::string WithMetaspaces(const WordSplit& step, std::string_view text, bool at_start) {
  std::string out;
  out.reserve(text.size() + step.metaspace.size());
  const bool wanted = step.prepend == WordSplit::Prepend::kAlways ||
                      (step.prepend == WordSplit::Prepend::kFirst && at_start);
  if (wanted && !text.starts_with(' ') && !text.starts_with(step.metaspace)) out = step.metaspace;
  for (char c : text) {
    if (c == ' ') {
      out += step.metaspace;
    } else {
      out += c;
    }
  }
  return out;
}

/// Calls `each(word, at_start)` for the words that one step makes of `text`.
template <class Each>
Status SplitOnce(const WordSplit& step, std::string_view text, bool at_start, Each&& each) {
  using Kind = WordSplit::Kind;
  auto word = [&](size_t begin, size_t end) {
    if (begin < end) each(text.substr(begin, end - begin), at_start && begin == 0);
  };
  switch (step.kind) {
    case Kind::kPrefixSpace:
      if (text.starts_with(' ')) {
        each(text, at_start);
      } else {
        each(std::string_view(" " + std::string(text)), at_start);
      }
      return OkStatus();
    case Kind::kMetaspace: {
      const std::string spaced = WithMetaspaces(step, text, at_start);
      for (size_t begin = 0; begin < spaced.size();) {
        size_t end = step.split ? spaced.find(step.metaspace, begin + 1) : std::string::npos;
        end = std::min(end, spaced.size());
        each(std::string_view(spaced).substr(begin, end - begin), at_start && begin == 0);
        begin = end;
      }
      return OkStatus();
    }
    case Kind::kRegex:
    case Kind::kString:
    case Kind::kPunctuation:
      return SplitByMatch(step, text, word);
    default:
      SplitByRole(step.kind, text, word);
      return OkStatus();
  }
}

}  // namespace

Status SplitWords(std::span<const WordSplit> steps, std::string_view text, bool at_start,
                  const std::function<void(std::string_view)>& each) {
  if (text.empty()) return OkStatus();
  if (steps.empty()) {
    each(text);
    return OkStatus();
  }
  Status status;
  Status own = SplitOnce(steps[0], text, at_start, [&](std::string_view word, bool first) {
    if (!status.ok()) return;
    if (steps.size() == 1) {
      each(word);
    } else {
      status = SplitWords(steps.subspan(1), word, first, each);
    }
  });
  return own.ok() ? status : own;
}

bool CutsAtSpaces(const std::vector<WordSplit>& steps) {
  using Kind = WordSplit::Kind;
  bool cuts = false;
  for (const WordSplit& step : steps) {
    switch (step.kind) {
      case Kind::kBert:
      case Kind::kWhitespace:
      case Kind::kWhitespaceSplit:
        cuts = true;
        break;
      case Kind::kMetaspace:
        cuts |= step.split;
        break;
      case Kind::kRegex: {
        const bool isolated = step.behavior == WordSplit::Behavior::kIsolated;
        if (!step.regex->cuts_at_spaces() || !isolated) return false;
        cuts = true;
        break;
      }
      case Kind::kString:
        return false;
      default:
        break;
    }
  }
  return cuts;
}

}  // namespace weft
