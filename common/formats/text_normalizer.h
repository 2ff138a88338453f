#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/formats/charsmap.h"
#include "common/formats/unicode.h"

namespace weft {

/// BERT's clean-up: control characters out, all spaces plain, spaces around Chinese characters,
/// accents and capitals gone.
struct BertNormalizer {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool strip_accents = true;
  bool lowercase = true;
};
struct LowercaseNormalizer {};
struct StripAccentsNormalizer {};  ///< Takes out all combining marks.
struct StripNormalizer {
  bool left = true;
  bool right = true;
  std::string text = {};  ///< Repeats of this alone; "": whitespace of all kinds.
};
struct PrependNormalizer {
  std::string text;
};
struct ReplaceNormalizer {
  std::string from;  ///< Not empty.
  std::string to;
  bool whole_run = false;  ///< Two or more `from` in a row become one `to`; a single one stays.
};

/// One step of what a tokenizer does to text before it cuts it.
using NormalizerStep =
    std::variant<BertNormalizer, NormalForm, LowercaseNormalizer, StripAccentsNormalizer,
                 StripNormalizer, PrependNormalizer, ReplaceNormalizer, Charsmap>;

/// The text after all steps.
std::string Normalize(const std::vector<NormalizerStep>& steps, std::string_view text);

}  // namespace weft
