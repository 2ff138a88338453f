#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft::cli {

/// Columns that a terminal gives to UTF-8 text: two for a wide character, none for a combining
/// mark, one for any other, control characters and invalid bytes included.
int CountColumns(std::string_view text);

/// The text in at most `width` columns (at least 1): its beginning and "…" where it is longer.
/// Control characters become spaces, invalid bytes U+FFFD.
std::string CutToColumns(std::string_view text, int width);

/// The parts in lines of at most `width` columns (at least 1): as many as fit on a line, with
/// `separator` between them. A part longer than a line is broken. Characters as in CutToColumns.
std::vector<std::string> FlowParts(const std::vector<std::string>& parts,
                                   std::string_view separator, int width);

/// FlowParts of the words of a text.
std::vector<std::string> FlowWords(std::string_view text, int width);

}  // namespace weft::cli
