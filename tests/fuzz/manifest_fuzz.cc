// The manifest of a checkpoint. The input is its content: under a right hash, what is read is
// written to the same text; and as it is, where the hash is wrong.
#include "common/spec/spec_json.h"
#include "tests/fuzz/input.h"
#include "worker/engine/checkpoint/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  const std::string_view text = fuzz::Text(data, size);
  (void)engine::ParseManifest(std::string(text), "manifest.json");
  const Result<Json> json = ParseJson(text);
  if (!json.ok()) return 0;
  const auto manifest = FromJson<engine::CheckpointManifest>(*json);
  if (!manifest.ok()) return 0;
  const std::string written = engine::ManifestText(*manifest);
  const auto again = engine::ParseManifest(written, "again");
  if (manifest->format_version != engine::kCheckpointFormatVersion) {
    WEFT_FUZZ_EXPECT(again.status().code() == StatusCode::kInvalid);
    return 0;
  }
  WEFT_FUZZ_EXPECT(again.ok());
  WEFT_FUZZ_EXPECT(engine::ManifestText(*again) == written);
  return 0;
}
