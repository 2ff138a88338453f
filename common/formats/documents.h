#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/env.h"
#include "common/json.h"
#include "common/status.h"

namespace weft {

/// How documents stand in a file; the fields mean what DataSpec says of them.
struct DocumentOptions {
  std::string format = "auto";  ///< "auto", "text" or "jsonl".
  std::string text_field = "text";
  std::string separator = "";
  std::string second_text_field = "";  ///< "": single texts.
  std::string label_field = "";        ///< "": labels are not read.
};

/// What one document holds.
struct DocumentContent {
  std::string_view text;  ///< In the file or in `storage`.
  std::string second;     ///< Second text of a pair.
  std::string label;      ///< A name, or a whole number in decimal.
  bool label_is_number = false;
  std::string storage;
};

/// The documents of one text or JSONL file, mapped. Immutable, so thread-safe. The file must not be
/// truncated while it is open.
class DocumentFile {
 public:
  /// Finds the documents. A byte order mark at the start is dropped; empty documents and blank
  /// lines are skipped; the last line needs no newline; JSONL lines may end in CR LF. kInvalid: an
  /// empty file, or one that is not text (NUL bytes, more than a tenth of its bytes not UTF-8).
  static Result<DocumentFile> Open(Env& env, const std::string& path,
                                   const DocumentOptions& options);

  size_t size() const { return documents_.size(); }
  bool is_jsonl() const { return is_jsonl_; }

  /// Bytes of the document in the file, for sharing out work.
  size_t StoredBytes(size_t i) const { return documents_[i].bytes.size(); }

  /// Text of document `i`; it stands in the file or in `scratch`. kInvalid names file and line when
  /// a JSONL line is not a JSON object with the text field.
  Result<std::string_view> Text(size_t i, std::string& scratch) const;

  /// All of document `i`. kInvalid also when the second text or the label is missing, or the label
  /// neither a string nor a whole number from 0. Only JSONL has pairs and labels.
  Status Read(size_t i, DocumentContent& out) const;

  /// The whole file.
  std::span<const std::byte> bytes() const { return file_->bytes(); }

 private:
  struct Document {
    std::string_view bytes;
    uint64_t line = 0;  ///< In JSONL, from 1.
  };

  std::string Place(size_t i) const;
  Result<Json> ParseLine(size_t i) const;
  Result<Json> FindField(const Json& json, size_t i, const std::string& name,
                         const char* option) const;
  Result<std::string> StringField(const Json& json, size_t i, const std::string& name,
                                  const char* option) const;
  void SplitLines(std::string_view text);
  void SplitText(std::string_view text, const std::string& separator);

  std::string path_;
  std::unique_ptr<MappedFile> file_;
  bool is_jsonl_ = false;
  DocumentOptions options_;
  std::vector<Document> documents_;
};

/// OK when `text` can be training text, kInvalid with the reason otherwise. `source` names it.
Status CheckIsText(std::string_view text, const std::string& source);

}  // namespace weft
