#include "worker/engine/checkpoint/manifest.h"

#include "common/hash.h"
#include "common/json.h"
#include "common/spec/spec_json.h"

namespace weft::engine {
namespace {

constexpr char kContentKey[] = "checkpoint";
constexpr char kHashKey[] = "xxh3_128";

std::string HashOfText(const std::string& text) {
  return HashHex(std::as_bytes(std::span(text)));
}

}  // namespace

std::string ManifestText(const CheckpointManifest& manifest) {
  Json document;
  document[kContentKey] = ToJson(manifest);
  document[kHashKey] = HashOfText(document[kContentKey].dump());
  return document.dump() + "\n";
}

Result<CheckpointManifest> ParseManifest(const std::string& text, const std::string& source) {
  Result<Json> document = ParseJson(text);
  if (!document.ok()) return CorruptError(source + ": " + document.status().message());
  auto content = document->find(kContentKey);
  auto hash = document->find(kHashKey);
  if (!document->is_object() || content == document->end() || hash == document->end() ||
      !content->is_object() || !hash->is_string()) {
    return CorruptError(source + " is not a checkpoint manifest");
  }
  // The whole text has one legal form, so that a change of any byte shows.
  if (hash->get<std::string>() != HashOfText(content->dump()) || document->dump() + "\n" != text) {
    return CorruptError(source + " was changed after it was written: its hash does not match");
  }
  auto version = content->find("format_version");
  if (version == content->end() || *version != kCheckpointFormatVersion) {
    return InvalidError(source + " has checkpoint format version " +
                        (version == content->end() ? "?" : version->dump()) +
                        "; this release reads version " + std::to_string(kCheckpointFormatVersion) +
                        "; hint: use the release that wrote it");
  }
  return FromJson<CheckpointManifest>(Document{*content, source, {}});
}

Result<CheckpointManifest> ReadManifest(Env& env, const std::string& folder) {
  const std::string path = JoinPath(folder, kManifestName);
  WEFT_ASSIGN_OR_RETURN(std::string text, ReadFile(env, path, uint64_t{64} << 20));
  return ParseManifest(text, path);
}

}  // namespace weft::engine
