#include "common/formats/safetensors_index.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>

#include "common/formats/weight_files.h"
#include "common/json.h"

namespace weft {
namespace {

uint64_t BytesOf(const SafetensorsTensor& tensor) {
  uint64_t bits = static_cast<uint64_t>(SafetensorsTypeBits(tensor.type));
  for (uint64_t extent : tensor.shape) bits *= extent;
  return bits / 8;
}

bool StaysInFolder(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

/// Indices of the tensors of each shard, filled in name order.
std::vector<std::vector<size_t>> AssignShards(const std::vector<SafetensorsTensor>& tensors,
                                              uint64_t max_shard_bytes) {
  std::vector<std::vector<size_t>> shards;
  uint64_t room = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    uint64_t bytes = BytesOf(tensors[i]);
    if (shards.empty() || bytes > room) {
      shards.emplace_back();
      room = max_shard_bytes;
    }
    shards.back().push_back(i);
    room -= std::min(room, bytes);
  }
  return shards;
}

}  // namespace

Result<SafetensorsIndex> ReadSafetensorsIndex(Env& env, const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(std::string text, ReadFile(env, path, uint64_t{256} << 20));
  auto fault = [&](const std::string& what) {
    return CorruptError(path + " is not a sound safetensors index: " + what);
  };
  Result<Json> json = ParseJson(text, {.bytes = size_t{256} << 20, .depth = 8});
  if (!json.ok()) return fault(json.status().message());
  if (!json->is_object() || !json->contains("weight_map") || !(*json)["weight_map"].is_object()) {
    return fault("it has no weight_map");
  }
  SafetensorsIndex index;
  for (const auto& [name, file] : (*json)["weight_map"].items()) {
    if (!file.is_string() || !StaysInFolder(file.get_ref<const std::string&>())) {
      return fault("the file of tensor " + Json(name).dump() + " is not a plain file name");
    }
    index.weight_map[name] = file.get<std::string>();
  }
  if (auto metadata = json->find("metadata"); metadata != json->end() && metadata->is_object()) {
    auto total = metadata->find("total_size");
    // Older writers stored a float here; only a whole number is worth keeping.
    if (total != metadata->end() && total->is_number_unsigned()) {
      index.total_bytes = total->get<uint64_t>();
    }
  }
  return index;
}

Status WriteSafetensorsIndex(Env& env, const std::string& path, const SafetensorsIndex& index) {
  Json json;
  json["metadata"]["total_size"] = index.total_bytes;
  json["weight_map"] = index.weight_map;
  return WriteFileAtomic(env, path, json.dump(2) + "\n");
}

std::string SafetensorsShardName(int shard, int shards) {
  char name[64];
  std::snprintf(name, sizeof(name), "model-%05d-of-%05d.safetensors", shard, shards);
  return name;
}

Result<SafetensorsFolder> SafetensorsFolder::Open(Env& env, const std::string& folder) {
  std::string single = JoinPath(folder, kSafetensorsFileName);
  std::string index_path = JoinPath(folder, kSafetensorsIndexName);
  SafetensorsFolder result;
  if (env.FileExists(single)) {
    WEFT_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(env, single));
    result.files_.push_back(std::move(file));
    for (const SafetensorsView& view : result.files_[0].tensors()) {
      result.tensors_.emplace(view.name, &view);
    }
    return result;
  }
  if (!env.FileExists(index_path)) {
    return MissingFileError(
        env, folder,
        std::string(kSafetensorsFileName) + " or " + std::string(kSafetensorsIndexName));
  }
  WEFT_ASSIGN_OR_RETURN(SafetensorsIndex index, ReadSafetensorsIndex(env, index_path));
  std::set<std::string> names;
  for (const auto& [tensor, file] : index.weight_map) names.insert(file);
  std::map<std::string, size_t> place;
  for (const std::string& name : names) {
    WEFT_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(env, JoinPath(folder, name)));
    place[name] = result.files_.size();
    result.files_.push_back(std::move(file));
  }
  for (const auto& [tensor, file] : index.weight_map) {
    const SafetensorsView* view = result.files_[place[file]].Find(tensor);
    if (view == nullptr) {
      return CorruptError(index_path + " says that tensor " + Json(tensor).dump() + " is in " +
                          file + ", but it does not");
    }
    result.tensors_.emplace(tensor, view);
  }
  return result;
}

const SafetensorsView* SafetensorsFolder::Find(std::string_view name) const {
  auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : it->second;
}

Status WriteSafetensorsFolder(Env& env, const std::string& folder,
                              std::vector<SafetensorsTensor> tensors, uint64_t max_shard_bytes,
                              const SafetensorsMetadata& metadata) {
  std::sort(tensors.begin(), tensors.end(),
            [](const SafetensorsTensor& a, const SafetensorsTensor& b) { return a.name < b.name; });
  std::vector<std::vector<size_t>> shards = AssignShards(tensors, max_shard_bytes);
  const std::string single = JoinPath(folder, kSafetensorsFileName);
  if (shards.size() <= 1) {
    return WriteSafetensors(env, single, std::move(tensors), metadata).status();
  }
  SafetensorsIndex index;
  for (size_t s = 0; s < shards.size(); ++s) {
    std::string name =
        SafetensorsShardName(static_cast<int>(s + 1), static_cast<int>(shards.size()));
    std::vector<SafetensorsTensor> part;
    for (size_t i : shards[s]) {
      index.weight_map[tensors[i].name] = name;
      index.total_bytes += BytesOf(tensors[i]);
      part.push_back(std::move(tensors[i]));
    }
    WEFT_RETURN_IF_ERROR(
        WriteSafetensors(env, JoinPath(folder, name), std::move(part), metadata).status());
  }
  WEFT_RETURN_IF_ERROR(WriteSafetensorsIndex(env, JoinPath(folder, kSafetensorsIndexName), index));
  // Readers prefer the single file, so one left by an earlier model must not stay next to shards.
  if (env.FileExists(single)) return env.RemoveFile(single);
  return OkStatus();
}

}  // namespace weft
