#pragma once

#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/env.h"
#include "common/formats/jinja_template.h"
#include "common/formats/tokenizer.h"
#include "common/status.h"

namespace weft {

/// Messages between a user and an assistant, and the tools that it may call.
struct Conversation {
  jinja::Value messages;  ///< A list of mappings, each with a string "role".
  jinja::Value tools;     ///< None: there are none.

  /// Reads JSON: `messages` an array, `tools` an array or "". kInvalid says what is wrong in which
  /// message.
  static Result<Conversation> FromJson(std::string_view messages, std::string_view tools);
};

/// Token ids of a conversation.
struct ChatTokens {
  std::vector<int32_t> ids;
  std::vector<uint8_t> said;  ///< [ids.size()] 1 for what the assistant says, else 0.
};

struct ChatEncodeOptions {
  SpecialTokens in_messages = SpecialTokens::kAsText;  ///< What messages spell.
  bool finds_said = true;                              ///< Otherwise nothing is marked as said.
  size_t said_from = 0;  ///< What the messages before this one say is not marked.
};

/// How a tokenizer's chat template turns conversations into tokens. What the template spells as
/// special tokens becomes these; what messages spell stays text unless they are trusted. Immutable,
/// so thread-safe; the tokenizer must outlive it.
class ChatTemplate {
 public:
  /// kInvalid, with the line: the template cannot be parsed, or a special token that ChatML needs
  /// is not in the vocabulary.
  static Result<ChatTemplate> Create(const std::string& source, const Tokenizer& tokenizer);

  /// The ids of a whole conversation. What the assistant says is what the template marks with
  /// {% generation %}. One without these marks is asked for the beginnings of the conversation: its
  /// turn goes from the end of the generation prompt to the end of its message, its end token
  /// included. kInvalid: an error of the template, or the text of a beginning is not the beginning
  /// of the text.
  Result<ChatTokens> Encode(const Conversation& conversation, const std::tm& now,
                            const ChatEncodeOptions& options = {}) const;

  /// The ids of a conversation and of what comes before the assistant's answer.
  Result<std::vector<int32_t>> EncodePrompt(const Conversation& conversation,
                                            const std::tm& now) const;

  /// The special token with which the template ends what the assistant says; empty when it is
  /// none.
  Result<std::vector<int32_t>> EndTokens() const;

  /// Jinja that writes <|im_start|>role, the content and <|im_end|>.
  static const char* ChatMl();

 private:
  using Spans = std::vector<std::pair<size_t, size_t>>;

  explicit ChatTemplate(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  Result<jinja::Rendered> Render(const jinja::Value& messages, const jinja::Value& tools,
                                 bool with_prompt, const std::tm& now) const;
  Result<Spans> SpansByPrefixes(const std::string& text, const jinja::Value& messages,
                                const jinja::Value& tools, const std::tm& now,
                                size_t first_message) const;
  size_t EndOfTurn(std::string_view text, size_t begin, size_t end) const;

  const Tokenizer& tokenizer_;
  std::vector<jinja::Template> template_;                        ///< One.
  std::vector<std::pair<std::string, jinja::Value>> variables_;  ///< Special tokens by role.
  std::vector<std::string> special_;                             ///< Their spellings, all of them.
};

/// The template of a job: `given` (DataSpec::chat_template), Jinja or the path of a file with it;
/// where it is empty that of the tokenizer, and else ChatML. kInvalid: `given` is neither.
Result<std::string> ChatTemplateSource(Env& env, const std::string& given,
                                       const std::string& of_tokenizer);

}  // namespace weft
