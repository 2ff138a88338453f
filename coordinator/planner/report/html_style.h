#pragma once

#include <string_view>

namespace weft::planner {

/// The page's style: colours for light and dark, greys that differ in lightness for print.
std::string_view HtmlStyle();

}  // namespace weft::planner
