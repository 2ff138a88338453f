#pragma once

#include <string>
#include <string_view>

#include "common/status.h"

namespace weft {

/// How documents are written in a file of text.
enum class TextForm : uint8_t {
  kText,       ///< As they are.
  kJsonLines,  ///< A JSON object on each line.
  kJsonArray,  ///< One array of JSON objects.
};

/// The form of a file with this content: what `format` (DataSpec::format: "text", "jsonl", "json")
/// says, or with "auto" or one for instruction tuning what content and name show. Looks at the
/// beginning alone. kInvalid, with what to write instead: tables (.csv), and JSON that holds no
/// documents.
Result<TextForm> RecognizeText(const std::string& path, std::string_view text,
                               const std::string& format);

/// What a file that begins so is, where it is a known form that is no text ("a gzip file"); else
/// "".
std::string KnownBinary(std::string_view bytes);

}  // namespace weft
