#pragma once

#include <string>
#include <string_view>

#include "common/status.h"

namespace weft {

/// A regular expression as tokenizer.json files have them (the syntax and meaning of Oniguruma for
/// Ruby, on Unicode text), written for PCRE2 with PCRE2_UTF, PCRE2_UCP and PCRE2_MULTILINE. What
/// the two read differently is put into words that mean the same: \s, \w, \h, \b, \v and \u,
/// scripts and long names of properties, `{,n}`, a `+` or `?` after `{n,m}`, classes within classes
/// and their intersection by &&. kInvalid names what is malformed or not supported, and where.
Result<std::string> RegexForPcre2(std::string_view regex);

}  // namespace weft
