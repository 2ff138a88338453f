#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/env.h"
#include "common/formats/text_form.h"
#include "common/json_scan.h"
#include "common/status.h"

namespace weft {

/// How documents are written in a file; the fields mean what DataSpec says of them.
struct DocumentOptions {
  std::string format = "auto";  ///< "auto", "text", "jsonl", "json", or for instruction tuning.
  std::string text_field = "text";
  std::string separator = "";
  std::string second_text_field = "";  ///< "": single texts.
  std::string label_field = "";        ///< "": labels are not read.
  uint64_t sample_bytes = 0;           ///< Read only the documents in the first N bytes; 0: all.
};

/// The content of one document. For instruction tuning `text` is what is asked and `second` the
/// answer; for chats they are the JSON of the messages and of the tools, "" for none. Preference
/// data have either, with the chosen answer, and `rejected` stands for `second` or the messages.
struct DocumentContent {
  std::string_view text;       ///< In the file or in `storage`.
  std::string second;          ///< Second text of a pair.
  std::string rejected;        ///< Of preference data.
  size_t prompt_messages = 0;  ///< Of preference data the messages before the answer; 0: texts.
  std::string label;           ///< A name, or a whole number in decimal.
  bool label_is_number = false;
  std::string storage;
};

/// The documents of one file of text or JSON, mapped. Thread-safe except Remove. The file must not
/// be truncated while it is open.
class DocumentFile {
 public:
  /// Finds the documents, in the form that RecognizeText finds. A byte order mark at the start is
  /// dropped; empty documents and blank lines are skipped; the last line needs no newline; JSON
  /// lines may end in CR LF. kInvalid: an empty file, or one that is not text (NUL bytes, more than
  /// a tenth of its bytes not UTF-8), or the brackets of an array of JSON do not match.
  static Result<DocumentFile> Open(Env& env, const std::string& path,
                                   const DocumentOptions& options);

  size_t size() const { return documents_.size(); }

  /// Documents are JSON objects, not text as it is.
  bool is_json() const { return form_ != TextForm::kText; }
  TextForm form() const { return form_; }

  /// "file:line" of document `i` of JSON.
  std::string Place(size_t i) const;

  /// Bytes of the document in the file, to partition work.
  size_t StoredBytes(size_t i) const { return documents_[i].bytes.size(); }

  /// Text of document `i`, of chats all that is said; it is in the file or in `scratch`.
  /// kInvalid names file and line when it is not a JSON object with the text field.
  Result<std::string_view> Text(size_t i, std::string& scratch) const;

  /// All of document `i`. kInvalid also when the second text or the label is missing, or the label
  /// neither a string, a boolean (false is 0, true 1) nor a whole number from 0. Fields that are
  /// not asked for may hold anything. Only JSON has pairs and labels. For instruction tuning the
  /// fields are those of the format: a conversation that Conversation::FromJson takes; prompt and
  /// completion; instruction, input (which may be absent or empty) and output; prompt, chosen and
  /// rejected, all of them strings or all lists of messages.
  Status Read(size_t i, DocumentContent& out) const;

  /// Leaves out the documents for which `removed` holds true.
  void Remove(const std::vector<uint8_t>& removed);

  /// The whole file.
  std::span<const std::byte> bytes() const { return file_->bytes(); }

 private:
  struct Document {
    std::string_view bytes;
    uint64_t line = 0;  ///< In JSON, from 1.
  };

  Result<std::vector<JsonMember>> Members(size_t i) const;
  Result<std::string_view> FindField(const std::vector<JsonMember>& members, size_t i,
                                     const std::string& name, const char* option) const;
  Result<std::string> StringField(const std::vector<JsonMember>& members, size_t i,
                                  const std::string& name, const char* option) const;
  Result<std::string> StringOf(std::string_view value, size_t i, const std::string& name) const;
  Status ReadChat(const std::vector<JsonMember>& members, size_t i, DocumentContent& out) const;
  Status ReadAlpaca(const std::vector<JsonMember>& members, size_t i, DocumentContent& out) const;
  Status ReadPreference(const std::vector<JsonMember>& members, size_t i,
                        DocumentContent& out) const;
  Status ReadTools(const std::vector<JsonMember>& members, size_t i, DocumentContent& out) const;
  Status ReadLabel(const std::vector<JsonMember>& members, size_t i, DocumentContent& out) const;
  void SplitLines(std::string_view text);
  Status SplitArray(std::string_view text, bool whole);
  void SplitText(std::string_view text, const std::string& separator);

  std::string path_;
  std::unique_ptr<MappedFile> file_;
  TextForm form_ = TextForm::kText;
  DocumentOptions options_;
  std::vector<Document> documents_;
};

/// The error of a document that cannot be used, with a hint at data.bad_lines unless it has one.
Status WithBadLineHint(const Status& status);

/// OK when `text` can be training text, kInvalid with the reason otherwise. `source` names it.
Status CheckIsText(std::string_view text, const std::string& source);

}  // namespace weft
