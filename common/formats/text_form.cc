#include "common/formats/text_form.h"

#include <algorithm>
#include <array>

#include "common/env.h"
#include "common/json_scan.h"
#include "common/spec/instruction_data.h"
#include "common/text.h"

namespace weft {
namespace {

bool EndsInAny(std::string_view name, std::initializer_list<const char*> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](const char* ending) { return name.ends_with(ending); });
}

/// The first line that is not blank; `text` then begins after it.
std::string_view TakeLine(std::string_view& text) {
  size_t at = 0;
  SkipJsonSpace(text, at);
  text.remove_prefix(at);
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(line.size());
  return line;
}

bool IsObject(std::string_view line) {
  return ScanJsonObject(line).ok();
}

/// Whether `text`, which begins with a bracket, is an array of objects as far as its start shows.
bool HoldsObjects(std::string_view text) {
  size_t at = 1;
  SkipJsonSpace(text, at);
  if (at < text.size() && text[at] == ']') return true;
  if (at == text.size() || text[at] != '{') return false;
  const Result<std::string_view> first = ScanJsonValue(text, at);
  return first.ok() && IsObject(*first);
}

Status RefuseTable(const std::string& path) {
  const bool tabs = AsciiLowerCase(BaseName(path)).ends_with(".tsv");
  return InvalidError(
      path +
      " is a table, which is not read. hint: write a JSON object a line, for example with "
      "python3 -c 'import csv,json,sys; [print(json.dumps(r)) for r in "
      "csv.DictReader(sys.stdin" +
      (tabs ? std::string(", delimiter=\"\\t\"") : "") + ")]' < " + BaseName(path) +
      " > data.jsonl; or data.format: text to learn the file as it is");
}

Status RefuseJson(const std::string& path, const std::string& what) {
  return InvalidError(path + " is named .json and " + what +
                      ". hint: write an object a line ({\"text\": ...}) or an array of objects; or "
                      "data.format: text to learn the file as it is");
}

}  // namespace

Result<TextForm> RecognizeText(const std::string& path, std::string_view text,
                               const std::string& format) {
  if (format == "text") return TextForm::kText;
  if (format == "jsonl") return TextForm::kJsonLines;
  if (format == "json") return TextForm::kJsonArray;
  const std::string name = AsciiLowerCase(BaseName(path));
  if (EndsInAny(name, {".csv", ".tsv"})) return RefuseTable(path);
  if (IsInstructionFormat(format)) {
    size_t begin = 0;
    SkipJsonSpace(text, begin);
    return text.substr(begin).starts_with('[') ? TextForm::kJsonArray : TextForm::kJsonLines;
  }
  const bool named_lines = EndsInAny(name, {".jsonl", ".ndjson", ".jsonlines"});
  const bool named_json = name.ends_with(".json");
  size_t at = 0;
  SkipJsonSpace(text, at);
  text.remove_prefix(at);
  if (text.starts_with('[') && HoldsObjects(text)) return TextForm::kJsonArray;
  if (named_lines) return TextForm::kJsonLines;
  const char first = text.empty() ? '\0' : text[0];
  const bool is_lines = text.starts_with('{') && IsObject(TakeLine(text));
  if (named_json) {
    if (is_lines) return TextForm::kJsonLines;
    if (first == '\0') return TextForm::kText;  // refused as such
    return RefuseJson(path, first == '{'   ? "holds one object over several lines"
                            : first == '[' ? "holds an array of what are no objects"
                                           : "holds no JSON");
  }
  // Text may begin with a brace: two lines of it that are objects are no accident.
  if (!is_lines) return TextForm::kText;
  const std::string_view second = TakeLine(text);
  return second.empty() || IsObject(second) ? TextForm::kJsonLines : TextForm::kText;
}

std::string KnownBinary(std::string_view bytes) {
  struct Magic {
    std::string_view bytes;
    const char* name;
  };
  static constexpr std::array<Magic, 9> kMagics = {{{"\x1f\x8b", "a gzip file"},
                                                    {"\x28\xb5\x2f\xfd", "a Zstandard file"},
                                                    {"\xfd"
                                                     "7zXZ",
                                                     "an xz file"},
                                                    {"BZh", "a bzip2 file"},
                                                    {"PK\x03\x04", "a zip file"},
                                                    {"PAR1", "a Parquet file"},
                                                    {"ARROW1", "an Arrow file"},
                                                    {"\xff\xfe", "text in UTF-16"},
                                                    {"\xfe\xff", "text in UTF-16"}}};
  for (const Magic& magic : kMagics) {
    if (bytes.starts_with(magic.bytes)) return magic.name;
  }
  return "";
}

}  // namespace weft
