#include "common/formats/documents.h"

#include <algorithm>
#include <cstring>

#include "common/formats/utf8.h"
#include "common/json.h"

namespace weft {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr size_t kMaxLineBytes = size_t{64} << 20;

uint64_t CountInvalidBytes(std::string_view text) {
  uint64_t invalid = 0;
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    Utf8Char c = ReadUtf8(text, at);
    invalid += c.valid ? 0 : 1;
    at += static_cast<size_t>(c.bytes);
  }
  return invalid;
}

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
  if (uint64_t invalid = CountInvalidBytes(text); invalid * 10 > text.size()) {
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
  WEFT_ASSIGN_OR_RETURN(file.file_, env.MapFile(path));
  std::span<const std::byte> bytes = file.file_->bytes();
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  WEFT_RETURN_IF_ERROR(CheckIsText(text, path));
  file.is_jsonl_ =
      options.format == "jsonl" ||
      (options.format == "auto" && (path.ends_with(".jsonl") || path.ends_with(".ndjson")));
  if (file.is_jsonl_) {
    file.json_field_ = options.text_field;
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
  const Document& document = documents_[i];
  if (!is_jsonl_) return document.bytes;
  const std::string place = path_ + ":" + std::to_string(document.line);
  Result<Json> json = ParseJson(document.bytes, {.bytes = kMaxLineBytes, .depth = 64});
  if (!json.ok()) return json.status().WithContext(place);
  if (!json->is_object()) return InvalidError(place + ": the line is not a JSON object");
  auto field = json->find(json_field_);
  if (field == json->end()) {
    std::string keys;
    for (const auto& [key, value] : json->items()) {
      if (keys.size() < 200) keys += (keys.empty() ? "" : ", ") + key;
    }
    return InvalidError(place + ": no field \"" + json_field_ + "\" (it has: " + keys +
                        "). hint: set data.text_field");
  }
  if (!field->is_string()) {
    return InvalidError(place + ": the field \"" + json_field_ + "\" is not a string");
  }
  scratch = std::move(field->get_ref<std::string&>());
  return std::string_view(scratch);
}

}  // namespace weft
