#include "common/formats/split_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/formats/regex_dialect.h"
#include "common/formats/utf8.h"
#include "common/json.h"

namespace weft {
namespace {

constexpr size_t kLongestRegex = 16384;

std::string Message(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

/// Bytes of a pattern or a text in a message.
constexpr size_t kShownBytes = 80;

/// What matching needs besides the pattern; one a thread.
struct Scratch {
  Scratch() {
    data = pcre2_match_data_create(1, nullptr);
    context = pcre2_match_context_create(nullptr);
    stack = pcre2_jit_stack_create(32 * 1024, 8 * 1024 * 1024, nullptr);
    WEFT_CHECK(data != nullptr && context != nullptr, "out of memory for a match");
    pcre2_set_match_limit(context, SplitRegex::kMostSteps);
    pcre2_set_depth_limit(context, SplitRegex::kMostSteps);
    pcre2_set_heap_limit(context, SplitRegex::kMostKibibytes);
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Scratch() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    if (stack != nullptr) pcre2_jit_stack_free(stack);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
};

}  // namespace

class SplitRegex::Compiled {
 public:
  explicit Compiled(pcre2_code* code) : code_(code) {}
  ~Compiled() { pcre2_code_free(code_); }
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;

  const pcre2_code* code() const { return code_; }

 private:
  pcre2_code* code_;
};

Result<SplitRegex> SplitRegex::Compile(std::string_view regex) {
  SplitRegex out;
  out.regex_ = regex;
  out.known_ = PatternOfRegex(regex);
  out.cuts_at_spaces_ = out.known_.has_value() || regex == kO200k;
  const std::string name = "the pattern " + Quoted(regex, kShownBytes);
  if (regex.size() > kLongestRegex) {
    return InvalidError(name + " has " + std::to_string(regex.size()) + " bytes; at most " +
                        std::to_string(kLongestRegex) + " are read");
  }
  Result<std::string> translated = RegexForPcre2(regex);
  if (!translated.ok()) return translated.status().WithContext(name);
  int error = 0;
  PCRE2_SIZE at = 0;
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 200);
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated->data()), translated->size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &at,
                    context.get());
  if (code == nullptr) return InvalidError(name + ": " + Message(error));
  out.compiled_ = std::make_shared<const Compiled>(code);
  // Without memory that can be run, as on hardened systems, patterns are interpreted.
  (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return out;
}

SplitRegex SplitRegex::WithoutShortcut() const {
  SplitRegex out = *this;
  out.known_.reset();
  return out;
}

Status SplitRegex::ForEach(std::string_view text,
                           const std::function<void(std::string_view, bool)>& each) const {
  if (known_) {
    while (!text.empty()) {
      const std::string_view piece = text.substr(0, NextPiece(*known_, text));
      text.remove_prefix(piece.size());
      each(piece, true);
    }
    return OkStatus();
  }
  if (CountInvalidUtf8(text) == 0) return Match(text, text, nullptr, each);
  std::string valid;
  std::vector<size_t> offsets;  // in `text`, of each byte of `valid`
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = ReadUtf8(text, at);
    AppendUtf8(valid, c.code);
    offsets.resize(valid.size(), at);
    at += static_cast<size_t>(c.bytes);
  }
  offsets.push_back(text.size());
  return Match(valid, text, offsets.data(), each);
}

Status SplitRegex::Match(std::string_view valid, std::string_view text, const size_t* offsets,
                         const std::function<void(std::string_view, bool)>& each) const {
  thread_local Scratch scratch;
  auto emit = [&](size_t begin, size_t end, bool match) {
    if (offsets != nullptr) {
      begin = offsets[begin];
      end = offsets[end];
    }
    each(text.substr(begin, end - begin), match);
  };
  size_t done = 0;             // up to here all is given
  size_t from = 0;             // where to look for the next match
  size_t last_end = SIZE_MAX;  // of the last match
  while (from <= valid.size()) {
    auto match = [&](uint32_t options) {
      return pcre2_match(compiled_->code(), reinterpret_cast<PCRE2_SPTR>(valid.data()),
                         valid.size(), from, PCRE2_NO_UTF_CHECK | options, scratch.data,
                         scratch.context);
    };
    int result = match(0);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NO_JIT);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) {
      return InvalidError("the pattern " + Quoted(regex_, kShownBytes) + " fails at byte " +
                          std::to_string(offsets == nullptr ? from : offsets[from]) +
                          " of a text (" + Message(result) +
                          "): " + Quoted(valid.substr(from), kShownBytes));
    }
    const PCRE2_SIZE* places = pcre2_get_ovector_pointer(scratch.data);
    const size_t begin = places[0], end = places[1];
    if (begin == end && end == last_end) {
      // No second empty match, and none right behind a match.
      from += from < valid.size() ? static_cast<size_t>(ReadUtf8(valid, from).bytes) : 1;
      continue;
    }
    if (done < begin) emit(done, begin, false);
    emit(begin, end, true);
    done = from = last_end = end;
  }
  if (done < valid.size()) emit(done, valid.size(), false);
  return OkStatus();
}

}  // namespace weft
