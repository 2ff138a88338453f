#include "common/full_match.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(FullMatch, TakesTheWholeText) {
  const auto matches = [](const char* pattern, const char* text) {
    const Result<bool> result = FullMatch(pattern, text);
    return result.ok() && *result;
  };
  EXPECT_TRUE(matches(R"(.*\.(q|v)_proj)", "model.layers.0.self_attn.v_proj"));
  EXPECT_FALSE(matches(R"(.*\.(q|v)_proj)", "model.layers.0.self_attn.k_proj"));
  EXPECT_FALSE(matches("q_proj", "model.q_proj"));
  EXPECT_FALSE(matches("q_proj", "q_proj.weight"));
  EXPECT_TRUE(matches("a|ab", "ab")) << "alternatives are tried until the whole fits";
  EXPECT_TRUE(matches("", ""));
}

TEST(FullMatch, SaysWhatIsNoRegularExpressionAndStopsInTime) {
  EXPECT_THAT(FullMatch("(a", "a").status().message(), ::testing::HasSubstr("'(a' is no regular"));
  const Result<bool> endless = FullMatch("(a*)*b", std::string(60, 'a'));
  EXPECT_TRUE(!endless.ok() || !*endless);
  EXPECT_THAT(FullMatch("(.+)+nn", "transformer.h.0.attn.c_attn").status().message(),
              ::testing::HasSubstr("'(.+)+nn' on 'transformer.h.0.attn.c_attn': "));
  EXPECT_LT(FullMatch(std::string(100'000, '('), "a").status().message().size(), 400u);
}

}  // namespace
}  // namespace weft
