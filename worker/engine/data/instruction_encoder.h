#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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

/// How documents of a format are to be read.
struct InstructionForm {
  bool conversations = false;  ///< Messages for a chat template; else a prompt and its completion.
  bool pairs = false;          ///< With two answers each.
};

/// Makes tokens of what is asked and answered, and says which of them are the answer. The chat
/// template sees the first of January 2025 as the current day, so that a dataset does not depend on
/// the day on which it is prepared. Immutable, so thread-safe.
class InstructionEncoder {
 public:
  /// `chat_template`: the template's source, for conversations. `tokenizer` must outlive it.
  /// kInvalid: those of ChatTemplate::Create.
  static Result<InstructionEncoder> Create(const InstructionForm& form,
                                           const std::string& chat_template,
                                           const Tokenizer& tokenizer,
                                           const InstructionOptions& options);

  /// Appends the tokens of a document and, for each, 1 where it belongs to an answer, else 0; and
  /// to `ends` how many tokens there are then. Of a pair these are two documents, the prompt with
  /// the chosen answer and the prompt with the rejected one. A prompt begins with what the
  /// tokenizer puts before a text, and a completion ends with the token that ends a document.
  /// kInvalid: those of ChatTemplate::Encode and Tokenizer::Encode; two answers of a pair that are
  /// the same, or one without tokens; messages where the form has texts, or the other way round.
  Status Encode(const DocumentContent& document, std::vector<int32_t>& tokens,
                std::vector<int32_t>& answers, std::vector<size_t>& ends) const;

  /// The tokens that end what the assistant says in chats.
  Result<std::vector<int32_t>> EndTokens() const;

 private:
  InstructionEncoder(const InstructionForm& form, const Tokenizer& tokenizer,
                     const InstructionOptions& options)
      : form_(form), tokenizer_(tokenizer), options_(options) {}

  Status EncodePair(const DocumentContent& document, std::vector<int32_t>& tokens,
                    std::vector<int32_t>& answers, std::vector<size_t>& ends) const;
  Status EncodeChat(std::string_view messages, std::string_view tools, size_t said_from,
                    std::vector<int32_t>& tokens, std::vector<int32_t>& answers) const;
  Status EncodeTexts(std::string_view prompt, std::string_view completion,
                     std::vector<int32_t>& tokens, std::vector<int32_t>& answers) const;

  InstructionForm form_;
  const Tokenizer& tokenizer_;
  InstructionOptions options_;
  std::optional<ChatTemplate> chat_;  ///< None: prompts and completions.
};

}  // namespace weft::engine
