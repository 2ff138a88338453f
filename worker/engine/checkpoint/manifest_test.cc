#include "worker/engine/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/hash.h"
#include "common/json.h"
#include "common/spec/spec_json.h"
#include "worker/engine/checkpoint/testing.h"

namespace weft::engine {
namespace {

using testing::HasSubstr;

TEST(Manifest, ComesBackAsItWasWritten) {
  CheckpointManifest manifest = TestManifest(100);
  manifest.files = {{"state.safetensors", 0, 1234, std::string(32, 'a')}};
  Result<CheckpointManifest> read = ParseManifest(ManifestText(manifest), "m");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(ToJson(*read), ToJson(manifest));
  EXPECT_EQ(read->job.optimizer.learning_rate, 0.1 + 0.2);
}

TEST(Manifest, EveryChangedByteShows) {
  const std::string text = ManifestText(TestManifest(100));
  for (size_t i = 0; i < text.size(); ++i) {
    for (int mask : {0x01, 0x20}) {
      std::string changed = text;
      changed[i] = static_cast<char>(changed[i] ^ mask);
      EXPECT_EQ(ParseManifest(changed, "m").status().code(), StatusCode::kCorrupt)
          << "byte " << i << ": " << changed.substr(i > 20 ? i - 20 : 0, 40);
    }
  }
  EXPECT_FALSE(ParseManifest(text.substr(0, text.size() - 1), "m").ok());
  EXPECT_FALSE(ParseManifest(text + "\n", "m").ok());
}

TEST(Manifest, HostileTextIsRefusedWithItsSource) {
  for (const char* text : {"", "{}", "[]", "null", "{\"checkpoint\":{},\"xxh3_128\":1}",
                           "{\"checkpoint\":3,\"xxh3_128\":\"\"}", "\xff\xfe"}) {
    Status refused = ParseManifest(text, "/run/manifest.json").status();
    EXPECT_EQ(refused.code(), StatusCode::kCorrupt) << text;
    EXPECT_THAT(refused.message(), HasSubstr("/run/manifest.json"));
  }
}

TEST(Manifest, AnotherFormatVersionIsNamedNotMisread) {
  Json content = ToJson(TestManifest(1));
  content["format_version"] = 2;
  content["a_field_of_the_future"] = true;
  Json document = {{"checkpoint", content}};
  const std::string text = content.dump();
  document["xxh3_128"] = HashHex(std::as_bytes(std::span(text)));
  Status refused = ParseManifest(document.dump() + "\n", "m").status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalid);
  EXPECT_THAT(refused.message(), HasSubstr("version 2"));
}

}  // namespace
}  // namespace weft::engine
