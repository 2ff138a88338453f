#include "coordinator/planner/report/markup.h"

#include <cstdio>

#include "common/check.h"
#include "common/text.h"

namespace weft::planner {
namespace {

/// Nobody reads more of one name.
constexpr size_t kMostBytes = 2000;

void AppendEscaped(std::string_view text, std::string& out) {
  for (const char c : ClipText(text, kMostBytes)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
}

}  // namespace

void Markup::Start(std::string_view name, Attributes attributes) {
  text_ += '<';
  text_ += name;
  for (const auto& [attribute, value] : attributes) {
    text_ += ' ';
    text_ += attribute;
    text_ += "=\"";
    AppendEscaped(value, text_);
    text_ += '"';
  }
}

Markup& Markup::Open(std::string_view name, Attributes attributes) {
  Start(name, attributes);
  text_ += '>';
  open_.emplace_back(name);
  return *this;
}

Markup& Markup::Close() {
  WEFT_CHECK(!open_.empty(), "no element is open");
  text_ += "</" + open_.back() + ">";
  // Lines that people can read, and no white space within a line of text.
  if (open_.back() != "span" && open_.back() != "code") text_ += '\n';
  open_.pop_back();
  return *this;
}

Markup& Markup::Text(std::string_view text) {
  AppendEscaped(text, text_);
  return *this;
}

Markup& Markup::Add(std::string_view name, Attributes attributes, std::string_view text) {
  if (text.empty()) {
    Start(name, attributes);
    text_ += "/>\n";
    return *this;
  }
  return Open(name, attributes).Text(text).Close();
}

Markup& Markup::Raw(std::string_view text) {
  text_ += text;
  return *this;
}

std::string Markup::Take() {
  WEFT_CHECK(open_.empty(), "elements are still open");
  return std::move(text_);
}

std::string Coordinate(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f", value);
  std::string number = text;
  while (number.back() == '0') number.pop_back();
  if (number.back() == '.') number.pop_back();
  return number;
}

}  // namespace weft::planner
