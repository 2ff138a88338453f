#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft::planner {

/// Writes XHTML and SVG whose elements are always closed in the right order, and whose texts and
/// attributes are always escaped: what users write can be nothing but text.
class Markup {
 public:
  using Attributes = std::initializer_list<std::pair<std::string_view, std::string>>;

  Markup& Open(std::string_view name, Attributes attributes = {});
  Markup& Close();
  Markup& Text(std::string_view text);
  /// Open, Text and Close; without a text an empty element.
  Markup& Add(std::string_view name, Attributes attributes = {}, std::string_view text = {});
  /// Text of our own that is put in as it is.
  Markup& Raw(std::string_view text);

  /// All of it, when every element has been closed.
  std::string Take();

 private:
  void Start(std::string_view name, Attributes attributes);

  std::string text_;
  std::vector<std::string> open_;
};

/// "12.5": a coordinate, with as many digits as a chart needs.
std::string Coordinate(double value);

}  // namespace weft::planner
