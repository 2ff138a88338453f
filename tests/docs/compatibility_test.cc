// docs/compatibility.md is written from the rows of refusals. WEFT_UPDATE_DOCS=1 rewrites it.

#include "common/spec/compatibility.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/env.h"
#include "common/text.h"

namespace weft {
namespace {

/// The features of all rows, by name.
std::vector<const Feature*> FeaturesByName() {
  std::vector<const Feature*> features;
  for (const Refusal& row : Refusals()) {
    for (const Feature* feature : {row.feature, row.with}) {
      if (std::find(features.begin(), features.end(), feature) == features.end()) {
        features.push_back(feature);
      }
    }
  }
  const auto key = [](const Feature* feature) { return AsciiLowerCase(feature->name); };
  std::sort(features.begin(), features.end(),
            [&](const Feature* a, const Feature* b) { return key(a) < key(b); });
  return features;
}

std::string Capitalized(std::string_view text) {
  std::string capitalized(text);
  capitalized[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return capitalized;
}

std::string Row(const Feature& with, const Refusal& row) {
  std::string text = "| " + Capitalized(with.name) + ": `" + std::string(with.setting) + "` | ";
  return text.append(row.because).append(" | ").append(row.hint).append(" |\n");
}

std::string CompatibilityPage() {
  std::string text =
      "# What does not go together\n\n"
      "All else that a job can ask for does. A job that asks for both of a row is refused when it "
      "is "
      "submitted, with these words. Sizes that must divide each other, and fields that need "
      "another "
      "one, are checked too, and are not listed here. Written from `common/spec/compatibility.cc` "
      "and the rows of techniques (`worker/engine/techniques`); to rewrite it after a change "
      "there: "
      "`WEFT_UPDATE_DOCS=1 build/release/bin/weft_docs_test`.\n";
  for (const Feature* feature : FeaturesByName()) {
    text += "\n## " + Capitalized(feature->name) + "\n\n`" + std::string(feature->setting) +
            "`\n\n| not with | why | instead |\n|---|---|---|\n";
    for (const Refusal& row : Refusals()) {
      if (row.feature == feature) text += Row(*row.with, row);
      if (row.with == feature) text += Row(*row.feature, row);
    }
  }
  return text;
}

TEST(Compatibility, PageIsWhatTheRowsSay) {
  const std::string path = std::string(WEFT_SOURCE_DIR) + "/docs/compatibility.md";
  const std::string expected = CompatibilityPage();
  if (std::getenv("WEFT_UPDATE_DOCS") != nullptr) {
    ASSERT_TRUE(WriteFileAtomic(Env::Posix(), path, expected).ok());
  }
  Result<std::string> page = ReadFile(Env::Posix(), path);
  ASSERT_TRUE(page.ok()) << page.status().ToString();
  EXPECT_EQ(*page, expected) << "stale; run: WEFT_UPDATE_DOCS=1 build/release/bin/weft_docs_test";
}

}  // namespace
}  // namespace weft
