#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/formats/chat_template.h"
#include "common/formats/documents.h"
#include "common/formats/tokenizer.h"
#include "common/spec/data_spec.h"
#include "common/status.h"

namespace weft::engine {

struct InstructionOptions {
  SpecialTokens special = SpecialTokens::kAsText;  ///< Of what messages, prompts, ... spell.
  bool finds_answers = true;  ///< Otherwise no token of a chat is marked as one of an answer.
};

/// Makes tokens of what is asked and answered, and says which of them are the answer. The chat
/// template sees the first of January 2025 as the current day, so that a dataset does not depend on
/// the day on which it is prepared. Immutable, so thread-safe.
class InstructionEncoder {
 public:
  /// Of data of a format for instruction tuning. `chat_template`: the template's source, for chats.
  /// `tokenizer` must outlive it. kInvalid: those of ChatTemplate::Create.
  static Result<InstructionEncoder> Create(const std::string& format,
                                           const std::string& chat_template,
                                           const Tokenizer& tokenizer,
                                           const InstructionOptions& options);

  /// Appends the tokens of a document and, for each, 1 where it belongs to an answer, else 0. A
  /// prompt begins with what the tokenizer puts before a text, and a completion ends with the token
  /// that ends a document. kInvalid: those of ChatTemplate::Encode and Tokenizer::Encode.
  Status Encode(const DocumentContent& document, std::vector<int32_t>& tokens,
                std::vector<int32_t>& answers) const;

  /// The tokens that end what the assistant says in chats.
  Result<std::vector<int32_t>> EndTokens() const;

 private:
  InstructionEncoder(const Tokenizer& tokenizer, const InstructionOptions& options)
      : tokenizer_(tokenizer), options_(options) {}

  Status EncodeChat(const DocumentContent& document, std::vector<int32_t>& tokens,
                    std::vector<int32_t>& answers) const;

  const Tokenizer& tokenizer_;
  InstructionOptions options_;
  std::optional<ChatTemplate> chat_;  ///< None: prompts and completions.
};

}  // namespace weft::engine
