// A chat template, which comes with models of others: whatever it says, parsing and rendering end
// within their limits.
#include "common/formats/chat_template.h"
#include "tests/fuzz/input.h"

namespace {

/// Enough for any template, and soon over.
constexpr int64_t kSteps = 20'000;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  const Result<jinja::Template> parsed = jinja::Template::Parse(fuzz::Text(data, size));
  if (!parsed.ok()) return 0;
  static const Result<Conversation> kConversation = Conversation::FromJson(
      R"([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello {{ x }}"},
          {"role": "assistant", "content": "Hi", "tool_calls": [{"name": "f", "arguments": {}}]}])",
      R"([{"type": "function", "function": {"name": "f", "parameters": {}}}])");
  WEFT_FUZZ_EXPECT(kConversation.ok());
  const Result<jinja::Rendered> rendered =
      parsed->Render({{"messages", kConversation->messages},
                      {"tools", kConversation->tools},
                      {"add_generation_prompt", jinja::Value::Boolean(true)},
                      {"bos_token", jinja::Value::String("<s>")},
                      {"eos_token", jinja::Value::String("</s>")}},
                     {.steps = kSteps, .now = {}});
  if (!rendered.ok()) return 0;
  for (const auto& [begin, end] : rendered->generation) {
    WEFT_FUZZ_EXPECT(begin <= end && end <= rendered->text.size());
  }
  return 0;
}
