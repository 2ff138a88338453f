#include "cli/output.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "cli/terminal_text.h"
#include "cli/text_columns.h"
#include "common/yaml.h"

namespace weft::cli {

const std::vector<std::pair<std::string, OutputFormat>>& OutputFormats() {
  static const std::vector<std::pair<std::string, OutputFormat>> formats = {
      {"table", OutputFormat::kTable}, {"wide", OutputFormat::kWide},
      {"json", OutputFormat::kJson},   {"yaml", OutputFormat::kYaml},
      {"name", OutputFormat::kName},   {"html", OutputFormat::kHtml}};
  return formats;
}

void Table::Print(std::ostream& out) const {
  std::vector<std::vector<std::string>> rows;
  rows.push_back(header_);
  for (const std::vector<std::string>& row : rows_) {
    std::vector<std::string>& shown = rows.emplace_back();
    for (const std::string& cell : row) shown.push_back(ForOneLine(cell));
  }
  std::vector<int> widths(header_.size());
  for (const std::vector<std::string>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], CountColumns(row[i]));
  }
  for (const std::vector<std::string>& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 == row.size()) break;
      const int missing = widths[i] - CountColumns(row[i]);
      line.append(static_cast<size_t>(missing) + 2, ' ');
    }
    out << line << '\n';
  }
}

void Print(const Listing& listing, OutputFormat format, std::ostream& out) {
  switch (format) {
    case OutputFormat::kTable:
    case OutputFormat::kHtml:  // a form of plans alone, which main sees to
      listing.table.Print(out);
      return;
    case OutputFormat::kWide:
      listing.wide.Print(out);
      return;
    case OutputFormat::kName:
      for (const std::string& name : listing.names) out << name << '\n';
      return;
    case OutputFormat::kJson:
    case OutputFormat::kYaml:
      break;
  }
  Json value;
  if (listing.single && listing.items.size() == 1) {
    value = listing.items[0];
    value["kind"] = listing.kind;
  } else {
    value["kind"] = listing.kind + "List";
    value["items"] = listing.items;
  }
  value["apiVersion"] = "weft/v1";
  if (format == OutputFormat::kJson) {
    out << value.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
  } else {
    out << ToYaml(value);
  }
}

std::string FixedText(double value, int digits) {
  if (!std::isfinite(value)) return "-";
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

std::string HumanBytes(double bytes) {
  static const char* const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 5) {
    bytes /= 1024;
    ++unit;
  }
  return FixedText(bytes, unit == 0 || bytes >= 100 ? 0 : 1) + " " + kUnits[unit];
}

std::string HumanCount(double count) {
  static const char* const kUnits[] = {"", "k", "M", "B", "T"};
  int unit = 0;
  while (count >= 1000 && unit < 4) {
    count /= 1000;
    ++unit;
  }
  return FixedText(count, unit == 0 ? 0 : 1) + kUnits[unit];
}

}  // namespace weft::cli
