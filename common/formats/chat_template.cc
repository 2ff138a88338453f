#include "common/formats/chat_template.h"

#include <algorithm>
#include <array>
#include <optional>

#include "common/formats/git_lfs.h"
#include "common/formats/utf8.h"
#include "common/text.h"

namespace weft {
namespace {

using jinja::Value;

constexpr uint64_t kMostBytes = uint64_t{1} << 20;

// Code points that no character ever has: one of them marks what is not to become a token.
constexpr char32_t kFirstGuard = 0xfdd0;
constexpr char32_t kLastGuard = 0xfdef;

std::string Utf8Of(char32_t code) {
  std::string text;
  AppendUtf8(text, code);
  return text;
}

/// Calls `visit` with each string of a value, which may change it; the value with the changes.
template <class Visit>
Result<Value> WithStrings(const Value& value, const Visit& visit) {
  if (value.is_string()) {
    WEFT_ASSIGN_OR_RETURN(std::string text, visit(value.text()));
    return Value::String(std::move(text));
  }
  if (value.is_list()) {
    std::vector<Value> items;
    for (const Value& item : value.list().items) {
      WEFT_ASSIGN_OR_RETURN(Value changed, WithStrings(item, visit));
      items.push_back(std::move(changed));
    }
    return Value::Of(std::move(items));
  }
  if (value.is_mapping()) {
    std::vector<std::pair<std::string, Value>> entries;
    for (const auto& [key, item] : value.mapping().entries) {
      WEFT_ASSIGN_OR_RETURN(Value changed, WithStrings(item, visit));
      entries.emplace_back(key, std::move(changed));
    }
    return Value::Of(std::move(entries));
  }
  return value;
}

/// A guard that no string of the conversation holds.
Result<char32_t> FreeGuard(const Conversation& conversation) {
  for (char32_t guard = kFirstGuard; guard <= kLastGuard; ++guard) {
    const std::string text = Utf8Of(guard);
    bool found = false;
    auto look = [&](const std::string& held) -> Result<std::string> {
      found |= held.find(text) != std::string::npos;
      return std::string();
    };
    for (const Value* value : {&conversation.messages, &conversation.tools}) {
      WEFT_RETURN_IF_ERROR(WithStrings(*value, look).status());
    }
    if (!found) return guard;
  }
  return InvalidError("a conversation holds all of the noncharacters U+FDD0 to U+FDEF");
}

/// Puts the guard into each spelling of a special token, after its first character.
Result<std::string> Guarded(const std::string& text, const std::vector<std::string>& special,
                            const std::string& guard) {
  std::array<bool, 256> begins{};  // a special token
  for (const std::string& token : special) begins[static_cast<unsigned char>(token[0])] = true;
  std::string result;
  for (size_t at = 0; at < text.size();) {
    if (!begins[static_cast<unsigned char>(text[at])]) {
      result += text[at++];
      continue;
    }
    const std::string_view rest = std::string_view(text).substr(at);
    const auto bytes = static_cast<size_t>(ReadUtf8(text, at).bytes);
    result += rest.substr(0, bytes);
    at += bytes;
    const auto spelled = std::find_if(special.begin(), special.end(),
                                      [&](const std::string& s) { return rest.starts_with(s); });
    if (spelled == special.end()) continue;
    if (spelled->size() == bytes) {
      return InvalidError("a message holds the special token '" + ClipText(*spelled) +
                          "', which has one character; hint: data.special_tokens: parse");
    }
    result += guard;
  }
  return result;
}

/// Whether the role of a message is the assistant.
bool IsAssistant(const Value& message) {
  const Value* role = message.mapping().Find("role");
  return role != nullptr && role->is_string() && role->text() == "assistant";
}

}  // namespace

Result<Conversation> Conversation::FromJson(std::string_view messages, std::string_view tools) {
  Conversation conversation;
  WEFT_ASSIGN_OR_RETURN(conversation.messages, Value::FromJson(messages));
  if (!conversation.messages.is_list() || conversation.messages.list().items.empty()) {
    return InvalidError("the messages must be a list that is not empty");
  }
  size_t number = 0;
  for (const Value& message : conversation.messages.list().items) {
    const std::string place = "message " + std::to_string(++number);
    if (!message.is_mapping()) return InvalidError(place + " is not an object");
    const Value* role = message.mapping().Find("role");
    if (role == nullptr || !role->is_string()) {
      return InvalidError(place + " has no string \"role\" (system, user, assistant, ...)");
    }
    const Value* content = message.mapping().Find("content");
    const bool has_calls = message.mapping().Find("tool_calls") != nullptr;
    const bool is_absent = content == nullptr || content->is_none();
    if (is_absent ? !has_calls : !content->is_string() && !content->is_list()) {
      return InvalidError(place + " has no string \"content\"");
    }
  }
  if (tools.empty()) return conversation;
  WEFT_ASSIGN_OR_RETURN(conversation.tools, Value::FromJson(tools));
  if (!conversation.tools.is_list() && !conversation.tools.is_none()) {
    return InvalidError("the tools must be a list");
  }
  return conversation;
}

const char* ChatTemplate::ChatMl() {
  return "{% for message in messages %}"
         "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
         "{% endfor %}"
         "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
}

Result<ChatTemplate> ChatTemplate::Create(const std::string& source, const Tokenizer& tokenizer) {
  ChatTemplate chat(tokenizer);
  Result<jinja::Template> parsed = jinja::Template::Parse(source);
  if (!parsed.ok()) return parsed.status().WithContext("the chat template");
  chat.template_.push_back(*std::move(parsed));
  for (int32_t id : tokenizer.special_tokens()) {
    chat.special_.push_back(tokenizer.TokenOf(id).value_or(""));
  }
  std::erase(chat.special_, "");
  if (source == ChatMl()) {
    for (const char* token : {"<|im_start|>", "<|im_end|>"}) {
      if (std::find(chat.special_.begin(), chat.special_.end(), token) != chat.special_.end()) {
        continue;
      }
      return InvalidError(std::string("the tokenizer has no chat template and no special token ") +
                          token +
                          " for that of ChatML; hint: data.chat_template, which may end what is "
                          "said with {{ eos_token }}");
    }
  }
  for (const auto& [role, spelling] : tokenizer.config().roles) {
    chat.variables_.emplace_back(role, Value::String(spelling));
  }
  auto define = [&](const char* role, std::optional<int32_t> id) {
    if (!id.has_value() || tokenizer.config().roles.contains(role)) return;
    chat.variables_.emplace_back(role, Value::String(tokenizer.TokenOf(*id).value_or("")));
  };
  define("bos_token", tokenizer.roles().begin);
  define("eos_token", tokenizer.roles().end);
  define("pad_token", tokenizer.roles().padding);
  return chat;
}

Result<jinja::Rendered> ChatTemplate::Render(const Value& messages, const Value& tools,
                                             bool with_prompt, const std::tm& now) const {
  std::vector<std::pair<std::string, Value>> variables = variables_;
  variables.emplace_back("messages", messages);
  variables.emplace_back("tools", tools);
  variables.emplace_back("documents", Value());
  variables.emplace_back("add_generation_prompt", Value::Boolean(with_prompt));
  Result<jinja::Rendered> rendered = template_[0].Render(variables, {.now = now});
  if (!rendered.ok()) return rendered.status().WithContext("the chat template");
  return rendered;
}

/// The end of what the assistant says in [begin, end): white space that follows a special token is
/// the template's.
size_t ChatTemplate::EndOfTurn(std::string_view text, size_t begin, size_t end) const {
  std::string_view turn = text.substr(begin, end - begin);
  turn = turn.substr(0, turn.find_last_not_of(" \t\n") + 1);
  const bool ends = std::any_of(special_.begin(), special_.end(),
                                [&](const std::string& token) { return turn.ends_with(token); });
  return ends ? begin + turn.size() : end;
}

Result<ChatTemplate::Spans> ChatTemplate::SpansByPrefixes(const std::string& text,
                                                          const Value& messages, const Value& tools,
                                                          const std::tm& now,
                                                          size_t first_message) const {
  const std::vector<Value>& all = messages.list().items;
  Spans spans;
  for (size_t i = first_message; i < all.size(); ++i) {
    if (!IsAssistant(all[i])) continue;
    size_t ends[2] = {0, text.size()};  // of what is before message i, and of it
    for (size_t more = 0; more < 2; ++more) {
      if (i + more == 0 || (more == 1 && i + 1 == all.size())) continue;
      const auto last = all.begin() + static_cast<ptrdiff_t>(i + more);
      WEFT_ASSIGN_OR_RETURN(const Value first, Value::Of(std::vector<Value>(all.begin(), last)));
      WEFT_ASSIGN_OR_RETURN(const jinja::Rendered part,
                            Render(first, tools, /*with_prompt=*/more == 0, now));
      if (!text.starts_with(part.text)) {
        return InvalidError(
            "the chat template writes the first " + std::to_string(i + more) +
            " messages in another way when more follow, so what the assistant says cannot be "
            "distinguished from the rest; hint: mark it in the template with {% generation %} and "
            "{% endgeneration %}, or data.loss_on: all");
      }
      ends[more] = part.text.size();
    }
    spans.emplace_back(ends[0], EndOfTurn(text, ends[0], std::max(ends[0], ends[1])));
  }
  return spans;
}

Result<ChatTokens> ChatTemplate::Encode(const Conversation& conversation, const std::tm& now,
                                        const ChatEncodeOptions& options) const {
  WEFT_ASSIGN_OR_RETURN(const char32_t guard, FreeGuard(conversation));
  Value messages = conversation.messages;
  Value tools = conversation.tools;
  if (options.in_messages == SpecialTokens::kAsText) {
    const std::string guard_text = Utf8Of(guard);
    auto add_guard = [&](const std::string& text) { return Guarded(text, special_, guard_text); };
    WEFT_ASSIGN_OR_RETURN(messages, WithStrings(messages, add_guard));
    WEFT_ASSIGN_OR_RETURN(tools, WithStrings(tools, add_guard));
  }
  WEFT_ASSIGN_OR_RETURN(const jinja::Rendered rendered,
                        Render(messages, tools, /*with_prompt=*/false, now));
  Spans spans;
  if (options.finds_said && template_[0].marks_generation()) {
    spans = rendered.generation;
    if (options.said_from > 0) {
      const std::vector<Value>& all = messages.list().items;
      const auto end =
          all.begin() + static_cast<ptrdiff_t>(std::min(options.said_from, all.size()));
      WEFT_ASSIGN_OR_RETURN(const Value before, Value::Of(std::vector<Value>(all.begin(), end)));
      WEFT_ASSIGN_OR_RETURN(const jinja::Rendered part,
                            Render(before, tools, /*with_prompt=*/false, now));
      const size_t earlier = std::min(part.generation.size(), spans.size());
      spans.erase(spans.begin(), spans.begin() + static_cast<ptrdiff_t>(earlier));
    }
  } else if (options.finds_said) {
    WEFT_ASSIGN_OR_RETURN(spans,
                          SpansByPrefixes(rendered.text, messages, tools, now, options.said_from));
  }
  std::vector<size_t> cuts, places;
  for (const auto& [begin, end] : spans) {
    cuts.push_back(begin);
    cuts.push_back(end);
  }
  ChatTokens tokens;
  WEFT_RETURN_IF_ERROR(tokenizer_.EncodeGuarded(rendered.text, guard, cuts, tokens.ids, places));
  tokens.said.resize(tokens.ids.size());
  for (size_t i = 0; i < places.size(); i += 2) {
    std::fill(tokens.said.begin() + static_cast<ptrdiff_t>(places[i]),
              tokens.said.begin() + static_cast<ptrdiff_t>(places[i + 1]), uint8_t{1});
  }
  return tokens;
}

Result<std::vector<int32_t>> ChatTemplate::EncodePrompt(const Conversation& conversation,
                                                        const std::tm& now) const {
  WEFT_ASSIGN_OR_RETURN(const char32_t guard, FreeGuard(conversation));
  const std::string guard_text = Utf8Of(guard);
  auto add_guard = [&](const std::string& text) { return Guarded(text, special_, guard_text); };
  WEFT_ASSIGN_OR_RETURN(const Value messages, WithStrings(conversation.messages, add_guard));
  WEFT_ASSIGN_OR_RETURN(const jinja::Rendered rendered,
                        Render(messages, conversation.tools, /*with_prompt=*/true, now));
  std::vector<int32_t> ids;
  std::vector<size_t> places;
  WEFT_RETURN_IF_ERROR(tokenizer_.EncodeGuarded(rendered.text, guard, {}, ids, places));
  return ids;
}

Result<std::vector<int32_t>> ChatTemplate::EndTokens() const {
  WEFT_ASSIGN_OR_RETURN(const Conversation probe,
                        Conversation::FromJson(R"([{"role": "user", "content": "a"},
                                                   {"role": "assistant", "content": "b"}])",
                                               ""));
  WEFT_ASSIGN_OR_RETURN(const ChatTokens tokens, Encode(probe, /*now=*/{}));
  const std::vector<int32_t>& special = tokenizer_.special_tokens();
  auto is_special = [&](int32_t id) {
    return std::binary_search(special.begin(), special.end(), id);
  };
  // The last token that is said, or the one after it where a template leaves it out of its marks.
  const auto last = std::find(tokens.said.rbegin(), tokens.said.rend(), 1);
  const auto after = static_cast<size_t>(last.base() - tokens.said.begin());
  if (after > 0 && is_special(tokens.ids[after - 1])) return std::vector{tokens.ids[after - 1]};
  if (after > 0 && after < tokens.ids.size() && is_special(tokens.ids[after])) {
    return std::vector{tokens.ids[after]};
  }
  return std::vector<int32_t>();
}

Result<std::string> ChatTemplateSource(Env& env, const std::string& given,
                                       const std::string& of_tokenizer) {
  if (given.empty()) return of_tokenizer.empty() ? ChatTemplate::ChatMl() : of_tokenizer;
  if (given.find('{') != std::string::npos) return given;
  if (!env.FileExists(given)) {
    return InvalidError("data.chat_template: " + ClipText(given, 200) +
                        " is neither Jinja nor the path of a file");
  }
  WEFT_ASSIGN_OR_RETURN(std::string source, ReadFile(env, given, kMostBytes));
  if (Status s = CheckNotGitLfsPointer(source, given); !s.ok()) {
    return s.WithContext("data.chat_template");
  }
  return source;
}

}  // namespace weft
