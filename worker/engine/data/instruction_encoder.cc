#include "worker/engine/data/instruction_encoder.h"

#include <algorithm>
#include <ctime>

namespace weft::engine {
namespace {

/// Wednesday, the first of January 2025.
std::tm PreparationDay() {
  std::tm day{};
  day.tm_year = 125;
  day.tm_mday = 1;
  day.tm_wday = 3;
  return day;
}

}  // namespace

Result<InstructionEncoder> InstructionEncoder::Create(const std::string& format,
                                                      const std::string& chat_template,
                                                      const Tokenizer& tokenizer,
                                                      const InstructionOptions& options) {
  InstructionEncoder encoder(tokenizer, options);
  if (format != "chat") return encoder;
  WEFT_ASSIGN_OR_RETURN(ChatTemplate chat, ChatTemplate::Create(chat_template, tokenizer));
  encoder.chat_.emplace(std::move(chat));
  return encoder;
}

Result<std::vector<int32_t>> InstructionEncoder::EndTokens() const {
  return chat_.has_value() ? chat_->EndTokens() : std::vector<int32_t>();
}

Status InstructionEncoder::EncodeChat(const DocumentContent& document, std::vector<int32_t>& tokens,
                                      std::vector<int32_t>& answers) const {
  WEFT_ASSIGN_OR_RETURN(const Conversation conversation,
                        Conversation::FromJson(document.text, document.second));
  WEFT_ASSIGN_OR_RETURN(
      const ChatTokens chat,
      chat_->Encode(conversation, PreparationDay(),
                    {.in_messages = options_.special, .finds_said = options_.finds_answers}));
  tokens.insert(tokens.end(), chat.ids.begin(), chat.ids.end());
  answers.insert(answers.end(), chat.said.begin(), chat.said.end());
  return OkStatus();
}

Status InstructionEncoder::Encode(const DocumentContent& document, std::vector<int32_t>& tokens,
                                  std::vector<int32_t>& answers) const {
  if (chat_.has_value()) return EncodeChat(document, tokens, answers);
  const SequenceForm& form = tokenizer_.form(/*pair=*/false);
  tokens.insert(tokens.end(), form.begin.begin(), form.begin.end());
  std::vector<int32_t> prompt;
  WEFT_RETURN_IF_ERROR(tokenizer_.Encode(document.text, prompt, options_.special));
  const std::string both = std::string(document.text) + document.second;
  std::vector<int32_t> whole;
  WEFT_RETURN_IF_ERROR(tokenizer_.Encode(both, whole, options_.special));
  // A model is given the tokens of the prompt alone. Where the border falls within a token of the
  // whole, the completion is encoded by itself after them.
  if (whole.size() < prompt.size() || !std::equal(prompt.begin(), prompt.end(), whole.begin())) {
    whole = prompt;
    WEFT_RETURN_IF_ERROR(tokenizer_.Encode(document.second, whole, options_.special));
  }
  tokens.insert(tokens.end(), whole.begin(), whole.end());
  answers.resize(answers.size() + form.begin.size() + prompt.size(), 0);
  tokens.insert(tokens.end(), form.end.begin(), form.end.end());
  answers.resize(tokens.size(), 1);
  return OkStatus();
}

}  // namespace weft::engine
