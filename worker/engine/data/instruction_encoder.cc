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

Result<InstructionEncoder> InstructionEncoder::Create(const InstructionForm& form,
                                                      const std::string& chat_template,
                                                      const Tokenizer& tokenizer,
                                                      const InstructionOptions& options) {
  InstructionEncoder encoder(form, tokenizer, options);
  if (!form.conversations) return encoder;
  WEFT_ASSIGN_OR_RETURN(ChatTemplate chat, ChatTemplate::Create(chat_template, tokenizer));
  encoder.chat_.emplace(std::move(chat));
  return encoder;
}

Result<std::vector<int32_t>> InstructionEncoder::EndTokens() const {
  return chat_.has_value() ? chat_->EndTokens() : std::vector<int32_t>();
}

Status InstructionEncoder::EncodeChat(std::string_view messages, std::string_view tools,
                                      size_t said_from, std::vector<int32_t>& tokens,
                                      std::vector<int32_t>& answers) const {
  WEFT_ASSIGN_OR_RETURN(const Conversation conversation, Conversation::FromJson(messages, tools));
  WEFT_ASSIGN_OR_RETURN(const ChatTokens chat, chat_->Encode(conversation, PreparationDay(),
                                                             {.in_messages = options_.special,
                                                              .finds_said = options_.finds_answers,
                                                              .said_from = said_from}));
  tokens.insert(tokens.end(), chat.ids.begin(), chat.ids.end());
  answers.insert(answers.end(), chat.said.begin(), chat.said.end());
  return OkStatus();
}

Status InstructionEncoder::Encode(const DocumentContent& document, std::vector<int32_t>& tokens,
                                  std::vector<int32_t>& answers, std::vector<size_t>& ends) const {
  if (form_.pairs) return EncodePair(document, tokens, answers, ends);
  WEFT_RETURN_IF_ERROR(form_.conversations
                           ? EncodeChat(document.text, document.second, 0, tokens, answers)
                           : EncodeTexts(document.text, document.second, tokens, answers));
  ends.push_back(tokens.size());
  return OkStatus();
}

Status InstructionEncoder::EncodePair(const DocumentContent& document, std::vector<int32_t>& tokens,
                                      std::vector<int32_t>& answers,
                                      std::vector<size_t>& ends) const {
  const bool messages = document.prompt_messages > 0;
  if (messages != form_.conversations) {
    return InvalidError(std::string("the prompt is ") +
                        (messages ? "a list of messages, that of the first line a string"
                                  : "a string, that of the first line a list of messages"));
  }
  const size_t begin = tokens.size();
  for (const bool chosen : {true, false}) {
    const size_t first = tokens.size();
    if (messages) {
      WEFT_RETURN_IF_ERROR(EncodeChat(chosen ? document.text : std::string_view(document.rejected),
                                      document.second, document.prompt_messages, tokens, answers));
    } else {
      WEFT_RETURN_IF_ERROR(EncodeTexts(document.text, chosen ? document.second : document.rejected,
                                       tokens, answers));
    }
    if (std::find(answers.begin() + static_cast<ptrdiff_t>(first), answers.end(), 1) ==
        answers.end()) {
      return InvalidError(std::string("the ") + (chosen ? "chosen" : "rejected") +
                          " answer says nothing");
    }
    ends.push_back(tokens.size());
  }
  const auto border = tokens.begin() + static_cast<ptrdiff_t>(*(ends.end() - 2));
  if (std::equal(tokens.begin() + static_cast<ptrdiff_t>(begin), border, border, tokens.end())) {
    return InvalidError("the chosen and the rejected answer are the same");
  }
  return OkStatus();
}

Status InstructionEncoder::EncodeTexts(std::string_view prompt_text, std::string_view completion,
                                       std::vector<int32_t>& tokens,
                                       std::vector<int32_t>& answers) const {
  const SequenceForm& form = tokenizer_.form(/*pair=*/false);
  tokens.insert(tokens.end(), form.begin.begin(), form.begin.end());
  std::vector<int32_t> prompt;
  WEFT_RETURN_IF_ERROR(tokenizer_.Encode(prompt_text, prompt, options_.special));
  const std::string both = std::string(prompt_text).append(completion);
  std::vector<int32_t> whole;
  WEFT_RETURN_IF_ERROR(tokenizer_.Encode(both, whole, options_.special));
  // A model is given the tokens of the prompt alone. Where the border falls within a token of the
  // whole, the completion is encoded by itself after them.
  if (whole.size() < prompt.size() || !std::equal(prompt.begin(), prompt.end(), whole.begin())) {
    whole = prompt;
    WEFT_RETURN_IF_ERROR(tokenizer_.Encode(completion, whole, options_.special));
  }
  tokens.insert(tokens.end(), whole.begin(), whole.end());
  answers.resize(answers.size() + form.begin.size() + prompt.size(), 0);
  tokens.insert(tokens.end(), form.end.begin(), form.end.end());
  answers.resize(tokens.size(), 1);
  return OkStatus();
}

}  // namespace weft::engine
