#include "common/formats/documents.h"

#include <algorithm>
#include <cstring>

#include "common/formats/utf8.h"
#include "common/json.h"

namespace weft {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr size_t kMaxLineBytes = size_t{64} << 20;

bool IsBlank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

Status CheckIsText(std::string_view text, const std::string& source) {
  if (text.empty()) return InvalidError(source + " is empty");
  if (const void* nul = std::memchr(text.data(), 0, text.size())) {
    auto at = static_cast<const char*>(nul) - text.data();
    return InvalidError(source + " is not text: byte " + std::to_string(at) +
                        " is NUL. hint: give plain text or JSONL in UTF-8, not compressed");
  }
  if (uint64_t invalid = CountInvalidUtf8(text); invalid * 10 > text.size()) {
    return InvalidError(source + " is not text in UTF-8: " + std::to_string(invalid) + " of " +
                        std::to_string(text.size()) +
                        " bytes are invalid. hint: convert it, for example with iconv");
  }
  return OkStatus();
}

Result<DocumentFile> DocumentFile::Open(Env& env, const std::string& path,
                                        const DocumentOptions& options) {
  DocumentFile file;
  file.path_ = path;
  file.options_ = options;
  WEFT_ASSIGN_OR_RETURN(file.file_, env.MapFile(path));
  std::span<const std::byte> bytes = file.file_->bytes();
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  WEFT_RETURN_IF_ERROR(CheckIsText(text, path));
  file.is_jsonl_ =
      options.format == "jsonl" ||
      (options.format == "auto" && (path.ends_with(".jsonl") || path.ends_with(".ndjson")));
  if (file.is_jsonl_) {
    file.SplitLines(text);
  } else {
    file.SplitText(text, options.separator);
  }
  if (file.documents_.empty()) return InvalidError(path + " has no document that is not blank");
  return file;
}

void DocumentFile::SplitLines(std::string_view text) {
  uint64_t number = 0;
  while (!text.empty()) {
    size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (!IsBlank(line)) documents_.push_back({line, number});
  }
}

void DocumentFile::SplitText(std::string_view text, const std::string& separator) {
  while (!text.empty()) {
    size_t end = separator.empty() ? text.size() : std::min(text.find(separator), text.size());
    std::string_view document = text.substr(0, end);
    text.remove_prefix(std::min(end + separator.size(), text.size()));
    if (document.find_first_not_of(" \t\r\n") != std::string_view::npos) {
      documents_.push_back({document, 0});
    }
  }
}

Result<std::string_view> DocumentFile::Text(size_t i, std::string& scratch) const {
  if (!is_jsonl_) return documents_[i].bytes;
  WEFT_ASSIGN_OR_RETURN(Json json, ParseLine(i));
  WEFT_ASSIGN_OR_RETURN(scratch, StringField(json, i, options_.text_field, "text_field"));
  return std::string_view(scratch);
}

Status DocumentFile::Read(size_t i, DocumentContent& out) const {
  if (!is_jsonl_) {
    if (!options_.second_text_field.empty() || !options_.label_field.empty()) {
      return InvalidError(path_ +
                          " is plain text, which has no pairs and labels. hint: give JSONL");
    }
    out.text = documents_[i].bytes;
    return OkStatus();
  }
  WEFT_ASSIGN_OR_RETURN(Json json, ParseLine(i));
  WEFT_ASSIGN_OR_RETURN(out.storage, StringField(json, i, options_.text_field, "text_field"));
  out.text = out.storage;
  if (!options_.second_text_field.empty()) {
    WEFT_ASSIGN_OR_RETURN(out.second,
                          StringField(json, i, options_.second_text_field, "second_text_field"));
  }
  if (options_.label_field.empty()) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(Json label, FindField(json, i, options_.label_field, "label_field"));
  out.label_is_number = label.is_number_unsigned();
  if (!out.label_is_number && !label.is_string()) {
    return InvalidError(Place(i) + ": the label in \"" + options_.label_field +
                        "\" is neither a string nor a whole number from 0");
  }
  out.label = out.label_is_number ? label.dump() : label.get<std::string>();
  return OkStatus();
}

std::string DocumentFile::Place(size_t i) const {
  return path_ + ":" + std::to_string(documents_[i].line);
}

Result<Json> DocumentFile::ParseLine(size_t i) const {
  Result<Json> json = ParseJson(documents_[i].bytes, {.bytes = kMaxLineBytes, .depth = 64});
  if (!json.ok()) return json.status().WithContext(Place(i));
  if (!json->is_object()) return InvalidError(Place(i) + ": the line is not a JSON object");
  return json;
}

Result<Json> DocumentFile::FindField(const Json& json, size_t i, const std::string& name,
                                     const char* option) const {
  auto field = json.find(name);
  if (field != json.end()) return *field;
  std::string keys;
  for (const auto& [key, value] : json.items()) {
    if (keys.size() < 200) keys += (keys.empty() ? "" : ", ") + key;
  }
  return InvalidError(Place(i) + ": no field \"" + name + "\" (it has: " + keys +
                      "). hint: set data." + option);
}

Result<std::string> DocumentFile::StringField(const Json& json, size_t i, const std::string& name,
                                              const char* option) const {
  WEFT_ASSIGN_OR_RETURN(Json field, FindField(json, i, name, option));
  if (!field.is_string()) {
    return InvalidError(Place(i) + ": the field \"" + name + "\" is not a string");
  }
  return std::move(field.get_ref<std::string&>());
}

}  // namespace weft
