#include "common/full_match.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <memory>

#include "common/text.h"

namespace weft {
namespace {

/// Less than a millisecond, since a pattern from a file is tried on hundreds of names. Those that
/// people write take some hundreds of steps.
constexpr uint32_t kMostSteps = 1 << 16;
/// The most of a pattern that messages have.
constexpr size_t kMostBytes = 200;

std::string MessageOf(int error) {
  std::array<char, 128> text{};
  pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(text.data()), text.size());
  return text.data();
}

}  // namespace

Result<bool> FullMatch(const std::string& pattern, std::string_view text) {
  int error = 0;
  PCRE2_SIZE place = 0;
  const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_ANCHORED | PCRE2_ENDANCHORED, &error, &place, nullptr),
      &pcre2_code_free);
  if (code == nullptr) {
    return InvalidError("'" + ClipText(pattern, kMostBytes) + "' is no regular expression: " +
                        MessageOf(error) + " at character " + std::to_string(place));
  }
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
      pcre2_match_context_create(nullptr), &pcre2_match_context_free);
  pcre2_set_match_limit(context.get(), kMostSteps);
  pcre2_set_depth_limit(context.get(), kMostSteps);
  const int found = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                0, 0, data.get(), context.get());
  if (found >= 0) return true;
  if (found == PCRE2_ERROR_NOMATCH) return false;
  return InvalidError("the regular expression '" + ClipText(pattern, kMostBytes) + "' on '" +
                      ClipText(text, kMostBytes) + "': " + MessageOf(found) +
                      "; hint: a simpler one");
}

}  // namespace weft
