#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/formats/safetensors.h"

namespace weft {

/// `model.safetensors.index.json`: which file of a folder holds which tensor.
struct SafetensorsIndex {
  uint64_t total_bytes = 0;                       ///< Of all tensors, headers not counted.
  std::map<std::string, std::string> weight_map;  ///< Tensor name to file name.
};

inline constexpr std::string_view kSafetensorsFileName = "model.safetensors";
inline constexpr std::string_view kSafetensorsIndexName = "model.safetensors.index.json";

/// Reads an index. kCorrupt: malformed, or a file name that leaves the folder.
Result<SafetensorsIndex> ReadSafetensorsIndex(Env& env, const std::string& path);

/// Writes an index atomically. Write it after its files: its presence says that they are complete.
Status WriteSafetensorsIndex(Env& env, const std::string& path, const SafetensorsIndex& index);

/// "model-00002-of-00005.safetensors" for shard 2 of 5, counted from 1.
std::string SafetensorsShardName(int shard, int shards);

/// The tensors of a model folder: of `model.safetensors`, or of all files that the index names.
/// Immutable, so thread-safe.
class SafetensorsFolder {
 public:
  /// kInvalid when the folder has neither file (the message says what it does hold), kCorrupt when
  /// a file is damaged or an indexed tensor is missing from its file.
  static Result<SafetensorsFolder> Open(Env& env, const std::string& folder);

  /// The tensors in ascending order of name.
  const std::map<std::string, const SafetensorsView*, std::less<>>& tensors() const {
    return tensors_;
  }

  /// nullptr when there is none of this name.
  const SafetensorsView* Find(std::string_view name) const;

 private:
  std::vector<SafetensorsFile> files_;
  std::map<std::string, const SafetensorsView*, std::less<>> tensors_;
};

/// Writes `model.safetensors`, or, when the tensors take more than `max_shard_bytes`, numbered
/// shards of at most that size (a larger single tensor gets its own) and then their index.
Status WriteSafetensorsFolder(Env& env, const std::string& folder,
                              std::vector<SafetensorsTensor> tensors, uint64_t max_shard_bytes,
                              const SafetensorsMetadata& metadata = {});

}  // namespace weft
