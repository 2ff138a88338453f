#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "common/duration_text.h"
#include "common/json.h"

namespace weft::cli {

enum class OutputFormat { kTable, kWide, kJson, kYaml, kName, kHtml };

/// Name of every format, for -o.
const std::vector<std::pair<std::string, OutputFormat>>& OutputFormats();

/// Rows of text under a header, padded to columns; the last column is not padded. Cells may be text
/// of others (ForOneLine).
class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  void Print(std::ostream& out) const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

/// One kind of object as the user asked to see it: tables for people, the others for programs.
struct Listing {
  std::string kind;  ///< "Job"; lists are "JobList" in JSON.
  std::vector<Json> items;
  std::vector<std::string> names;  ///< For -o name, one an item.
  Table table;
  Table wide;
  bool single = false;  ///< One object asked for by name: JSON is the object itself.
};

void Print(const Listing& listing, OutputFormat format, std::ostream& out);

/// "1.5 GiB", "312 KiB"
std::string HumanBytes(double bytes);
/// "12.4M", "960"
std::string HumanCount(double count);
/// Fixed digits; "-" for values that are not finite.
std::string FixedText(double value, int digits);

}  // namespace weft::cli
