#include "common/formats/documents.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/formats/chat_template.h"
#include "common/formats/git_lfs.h"
#include "common/formats/utf8.h"
#include "common/hint.h"
#include "common/json.h"
#include "common/spec/instruction_data.h"
#include "common/text.h"

namespace weft {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr size_t kMaxLineBytes = size_t{64} << 20;

bool IsBlank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

/// The first `limit` bytes of `text`, up to the end of a line where there is one.
std::string_view Beginning(std::string_view text, uint64_t limit) {
  if (limit == 0 || text.size() <= limit) return text;
  text = text.substr(0, limit);
  const size_t end = text.rfind('\n');
  return end == std::string_view::npos ? text : text.substr(0, end + 1);
}

/// Why ParseJson refuses a value, without its line: that is the file's, not the value's.
std::string WithoutLine(std::string reason) {
  constexpr std::string_view kLine = "line 1, ";
  if (size_t at = reason.find(kLine); at != std::string::npos) reason.erase(at, kLine.size());
  return reason;
}

bool HasMember(const std::vector<JsonMember>& members, const std::string& name) {
  return std::any_of(members.begin(), members.end(),
                     [&](const JsonMember& member) { return JsonKeyName(member.key) == name; });
}

/// All text of a document for instruction tuning: what a tokenizer is trained on.
Result<std::string> AllText(const std::string& format, const DocumentContent& content) {
  std::string text;
  if (format != "chat" && content.prompt_messages == 0) {
    return text.append(content.text).append(content.second).append(content.rejected);
  }
  size_t known = 0;  // messages of the prompt, when the rejected answer is read
  for (const std::string_view messages : {content.text, std::string_view(content.rejected)}) {
    if (messages.empty()) continue;
    WEFT_ASSIGN_OR_RETURN(const Conversation conversation,
                          Conversation::FromJson(messages, content.second));
    const std::vector<jinja::Value>& all = conversation.messages.list().items;
    for (size_t m = known; m < all.size(); ++m) {
      const jinja::Value* said = all[m].mapping().Find("content");
      if (said != nullptr && said->is_string()) text += said->text() + "\n";
    }
    known = content.prompt_messages;
  }
  return text;
}

}  // namespace

Status CheckIsText(std::string_view text, const std::string& source) {
  if (text.empty()) return InvalidError(source + " is empty");
  WEFT_RETURN_IF_ERROR(CheckNotGitLfsPointer(text, source));
  const void* nul = std::memchr(text.data(), 0, text.size());
  const uint64_t invalid = nul == nullptr ? CountInvalidUtf8(text) : 0;
  if (nul == nullptr && invalid * 10 <= text.size()) return OkStatus();
  if (const std::string kind = KnownBinary(text); !kind.empty()) {
    return InvalidError(source + " is not text: it is " + kind +
                        ". hint: give plain text or JSON lines in UTF-8, not compressed");
  }
  if (nul != nullptr) {
    auto at = static_cast<const char*>(nul) - text.data();
    return InvalidError(source + " is not text: byte " + std::to_string(at) +
                        " is NUL. hint: give plain text or JSON lines in UTF-8, not compressed");
  }
  return InvalidError(source + " is not text in UTF-8: " + std::to_string(invalid) + " of " +
                      std::to_string(text.size()) +
                      " bytes are invalid. hint: convert it, for example with iconv");
}

Status WithBadLineHint(const Status& status) {
  if (status.code() != StatusCode::kInvalid) return status;
  if (!SplitHint(status.message()).hint.empty()) return status;
  return InvalidError(status.message() + "; hint: data.bad_lines: skip leaves such lines out");
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
  const std::string_view sample = Beginning(text, options.sample_bytes);
  WEFT_RETURN_IF_ERROR(CheckIsText(sample, path));
  WEFT_ASSIGN_OR_RETURN(file.form_,
                        RecognizeText(path, text.substr(0, 2 * kMaxLineBytes), options.format));
  switch (file.form_) {
    case TextForm::kText:
      file.SplitText(sample, options.separator);
      break;
    case TextForm::kJsonLines:
      file.SplitLines(sample);
      break;
    case TextForm::kJsonArray:
      WEFT_RETURN_IF_ERROR(file.SplitArray(sample, sample.size() == text.size()));
      break;
  }
  if (sample.size() < text.size()) {
    // What the end of the sample cuts says nothing.
    if (file.form_ == TextForm::kJsonLines && !sample.ends_with('\n')) file.documents_.clear();
    return file;
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

Status DocumentFile::SplitArray(std::string_view text, bool whole) {
  size_t at = 0;
  size_t counted = 0;
  uint64_t line = 1;
  auto refuse = [&](const std::string& reason) {
    line += static_cast<uint64_t>(std::count(text.begin() + static_cast<ptrdiff_t>(counted),
                                             text.begin() + static_cast<ptrdiff_t>(at), '\n'));
    return InvalidError(path_ + ":" + std::to_string(line) + ": not valid JSON: " + reason);
  };
  SkipJsonSpace(text, at);
  if (at == text.size() || text[at] != '[') return refuse("an array ([...]) is expected");
  ++at;
  SkipJsonSpace(text, at);
  while (at < text.size() && text[at] != ']') {
    const size_t begin = at;
    const Result<std::string_view> element = ScanJsonValue(text, at);
    if (!element.ok()) {
      if (!whole) return OkStatus();
      return refuse("an element of the array has no end");
    }
    line += static_cast<uint64_t>(std::count(text.begin() + static_cast<ptrdiff_t>(counted),
                                             text.begin() + static_cast<ptrdiff_t>(begin), '\n'));
    counted = begin;
    documents_.push_back({*element, line});
    SkipJsonSpace(text, at);
    if (at == text.size() || text[at] == ']') break;
    if (text[at] != ',') return refuse("',' or ']' is expected");
    ++at;
    SkipJsonSpace(text, at);
    if (at < text.size() && text[at] == ']') return refuse("a value is expected");
  }
  if (at == text.size()) return whole ? refuse("the array has no end") : OkStatus();
  ++at;
  SkipJsonSpace(text, at);
  if (at < text.size()) return refuse("something follows the array");
  return OkStatus();
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
  if (!is_json()) return documents_[i].bytes;
  if (IsInstructionFormat(options_.format)) {
    DocumentContent content;
    WEFT_RETURN_IF_ERROR(Read(i, content));
    WEFT_ASSIGN_OR_RETURN(scratch, AllText(options_.format, content));
    return std::string_view(scratch);
  }
  WEFT_ASSIGN_OR_RETURN(std::vector<JsonMember> members, Members(i));
  WEFT_ASSIGN_OR_RETURN(scratch, StringField(members, i, options_.text_field, "text_field"));
  return std::string_view(scratch);
}

Status DocumentFile::Read(size_t i, DocumentContent& out) const {
  if (!is_json()) {
    if (!options_.second_text_field.empty() || !options_.label_field.empty()) {
      return InvalidError(path_ +
                          " is plain text, which has no pairs and labels. hint: give JSONL");
    }
    out.text = documents_[i].bytes;
    return OkStatus();
  }
  WEFT_ASSIGN_OR_RETURN(std::vector<JsonMember> members, Members(i));
  if (options_.format == "chat") return ReadChat(members, i, out);
  if (options_.format == "alpaca") return ReadAlpaca(members, i, out);
  if (options_.format == kPreferenceFormat) return ReadPreference(members, i, out);
  if (options_.format == "prompt_completion") {
    WEFT_ASSIGN_OR_RETURN(out.storage, StringField(members, i, "prompt", "format"));
    out.text = out.storage;
    WEFT_ASSIGN_OR_RETURN(out.second, StringField(members, i, "completion", "format"));
    return OkStatus();
  }
  WEFT_ASSIGN_OR_RETURN(out.storage, StringField(members, i, options_.text_field, "text_field"));
  out.text = out.storage;
  if (!options_.second_text_field.empty()) {
    WEFT_ASSIGN_OR_RETURN(out.second,
                          StringField(members, i, options_.second_text_field, "second_text_field"));
  }
  return options_.label_field.empty() ? OkStatus() : ReadLabel(members, i, out);
}

Status DocumentFile::ReadChat(const std::vector<JsonMember>& members, size_t i,
                              DocumentContent& out) const {
  WEFT_ASSIGN_OR_RETURN(out.text, FindField(members, i, "messages", "format"));
  WEFT_RETURN_IF_ERROR(ReadTools(members, i, out));
  return Conversation::FromJson(out.text, out.second).status().WithContext(Place(i));
}

Status DocumentFile::ReadTools(const std::vector<JsonMember>& members, size_t i,
                               DocumentContent& out) const {
  out.second.clear();
  if (!HasMember(members, "tools")) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(const std::string_view tools, FindField(members, i, "tools", "format"));
  out.second = tools;
  return OkStatus();
}

Status DocumentFile::ReadPreference(const std::vector<JsonMember>& members, size_t i,
                                    DocumentContent& out) const {
  WEFT_ASSIGN_OR_RETURN(const std::string_view prompt, FindField(members, i, "prompt", "format"));
  out.prompt_messages = 0;
  if (!prompt.starts_with('[')) {
    WEFT_ASSIGN_OR_RETURN(out.storage, StringOf(prompt, i, "prompt"));
    out.text = out.storage;
    WEFT_ASSIGN_OR_RETURN(out.second, StringField(members, i, "chosen", "format"));
    WEFT_ASSIGN_OR_RETURN(out.rejected, StringField(members, i, "rejected", "format"));
    return OkStatus();
  }
  WEFT_RETURN_IF_ERROR(ReadTools(members, i, out));
  Result<Conversation> asked = Conversation::FromJson(prompt, out.second);
  if (!asked.ok()) return asked.status().WithContext(Place(i) + ": the field \"prompt\"");
  out.prompt_messages = asked->messages.list().items.size();
  const auto read = [&](const std::string& name, std::string& messages) -> Status {
    WEFT_ASSIGN_OR_RETURN(const std::string_view answer, FindField(members, i, name, "format"));
    const Status is_list = Conversation::FromJson(answer, "").status();
    if (!is_list.ok()) return is_list.WithContext(Place(i) + ": the field \"" + name + "\"");
    // The messages of both, one list after the other.
    messages.assign(prompt.substr(0, prompt.rfind(']'))).append(",");
    messages.append(answer.substr(answer.find('[') + 1));
    return OkStatus();
  };
  WEFT_RETURN_IF_ERROR(read("chosen", out.storage));
  out.text = out.storage;
  return read("rejected", out.rejected);
}

Status DocumentFile::ReadAlpaca(const std::vector<JsonMember>& members, size_t i,
                                DocumentContent& out) const {
  WEFT_ASSIGN_OR_RETURN(const std::string instruction,
                        StringField(members, i, "instruction", "format"));
  std::string input;
  if (HasMember(members, "input")) {
    WEFT_ASSIGN_OR_RETURN(input, StringField(members, i, "input", "format"));
  }
  WEFT_ASSIGN_OR_RETURN(out.second, StringField(members, i, "output", "format"));
  out.storage = "### Instruction:\n" + instruction + "\n\n";
  if (!input.empty()) out.storage += "### Input:\n" + input + "\n\n";
  out.storage += "### Response:\n";
  out.text = out.storage;
  return OkStatus();
}

Status DocumentFile::ReadLabel(const std::vector<JsonMember>& members, size_t i,
                               DocumentContent& out) const {
  const std::string& name = options_.label_field;
  WEFT_ASSIGN_OR_RETURN(std::string_view value, FindField(members, i, name, "label_field"));
  out.label_is_number = !value.starts_with('"');
  if (!out.label_is_number) {
    WEFT_ASSIGN_OR_RETURN(out.label, StringOf(value, i, name));
    return OkStatus();
  }
  if (value == "true" || value == "false") {
    out.label = value == "true" ? "1" : "0";
    return OkStatus();
  }
  constexpr double kMostExact = 0x1p53;
  const Result<Json> number = ParseJson(value);
  const double real = number.ok() && number->is_number() ? number->get<double>() : -1;
  if (!(real >= 0 && real <= kMostExact && std::floor(real) == real)) {
    return InvalidError(Place(i) + ": the label in \"" + name + "\" is " + ClipText(value, 40) +
                        ", neither a string, a boolean nor a whole number from 0");
  }
  out.label = std::to_string(static_cast<uint64_t>(real));
  return OkStatus();
}

void DocumentFile::Remove(const std::vector<uint8_t>& removed) {
  size_t kept = 0;
  for (size_t i = 0; i < documents_.size(); ++i) {
    if (removed[i] == 0) documents_[kept++] = documents_[i];
  }
  documents_.resize(kept);
}

std::string DocumentFile::Place(size_t i) const {
  return path_ + ":" + std::to_string(documents_[i].line);
}

Result<std::vector<JsonMember>> DocumentFile::Members(size_t i) const {
  const std::string_view text = documents_[i].bytes;
  if (text.size() > kMaxLineBytes) {
    return InvalidError(Place(i) + ": it has " + std::to_string(text.size()) + " bytes; at most " +
                        std::to_string(kMaxLineBytes) + " are accepted");
  }
  size_t at = 0;
  SkipJsonSpace(text, at);
  if (at == text.size() || text[at] != '{') {
    std::string message = Place(i) + ": it is not a JSON object";
    if (form_ == TextForm::kJsonLines && documents_[i].line == 1 && text[at] == '[') {
      message += ". hint: data.format: json reads an array of objects";
    }
    return InvalidError(message);
  }
  Result<std::vector<JsonMember>> members = ScanJsonObject(text);
  if (!members.ok()) return members.status().WithContext(Place(i));
  return members;
}

Result<std::string_view> DocumentFile::FindField(const std::vector<JsonMember>& members, size_t i,
                                                 const std::string& name,
                                                 const char* option) const {
  const JsonMember* found = nullptr;
  for (const JsonMember& member : members) {
    if (JsonKeyName(member.key) != name) continue;
    if (found != nullptr) {
      return InvalidError(Place(i) + ": not valid JSON: it repeats the key \"" + ClipText(name) +
                          "\"");
    }
    found = &member;
  }
  if (found != nullptr) return found->value;
  std::string keys;
  for (const JsonMember& member : members) {
    if (keys.size() < 200) keys += (keys.empty() ? "" : ", ") + ClipText(JsonKeyName(member.key));
  }
  return InvalidError(
      Place(i) + ": no field \"" + name + "\" (it has: " + keys + "). hint: set data." + option +
      (options_.format == "auto" ? ", or data.format: text to learn the file as it is" : ""));
}

Result<std::string> DocumentFile::StringField(const std::vector<JsonMember>& members, size_t i,
                                              const std::string& name, const char* option) const {
  WEFT_ASSIGN_OR_RETURN(std::string_view value, FindField(members, i, name, option));
  return StringOf(value, i, name);
}

Result<std::string> DocumentFile::StringOf(std::string_view value, size_t i,
                                           const std::string& name) const {
  const std::string place = Place(i) + ": the field \"" + name + "\"";
  if (!value.starts_with('"')) {
    return InvalidError(place + " is " + ClipText(value, 40) + ", which is not a string");
  }
  Result<Json> text = ParseJson(value, {.bytes = kMaxLineBytes, .depth = 1});
  if (!text.ok()) return InvalidError(place + ": " + WithoutLine(text.status().message()));
  return std::move(text->get_ref<std::string&>());
}

}  // namespace weft
