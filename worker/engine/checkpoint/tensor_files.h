#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/env.h"
#include "common/status.h"
#include "kernels/stream.h"
#include "worker/engine/checkpoint/manifest.h"
#include "worker/engine/tensor/named_tensor.h"

namespace weft::engine {

/// Writes the tensors of one rank as a safetensors file of `folder`, durably. Of parts it says in
/// the file's metadata where they belong; empty ones are left out.
Result<CheckpointFile> WriteTensorFile(Env& env, const std::string& folder, int64_t rank,
                                       int64_t world_size, const std::vector<NamedTensor>& tensors);

/// What a checkpoint may hold beyond what is asked for.
enum class ExtraTensors : uint8_t {
  kRefuse,  ///< Resuming: all state counts.
  kIgnore,  ///< Export and generation: the weights are enough.
};

/// The tensors in the files of a checkpoint, mapped: what is not read takes no memory. Immutable,
/// so thread-safe; copies share the files.
class StoredTensors {
 public:
  /// Opens the files in `folder`, whose hashes have been verified. Errors as SafetensorsFile::Open;
  /// kCorrupt when one does not say which parts of tensors it holds.
  static Result<StoredTensors> Open(Env& env, const std::string& folder,
                                    const CheckpointManifest& manifest);

  /// Whether a file holds tensor `name`, or a part of it.
  bool Has(const std::string& name) const;

  /// Fills `targets`. Each must be there with equal type and shape, in one piece or in parts cut
  /// anywhere; a target that is a part itself takes its own of them. kInvalid names the first that
  /// is not; then the targets may be filled in part. With kIgnore bf16 may also be read as f32,
  /// which is exact. `stream`: of the device that targets are on.
  Status Load(const std::vector<NamedTensor>& targets, ExtraTensors extra = ExtraTensors::kRefuse,
              const Stream& stream = {}) const;

 private:
  struct File;

  StoredTensors(std::string folder, std::shared_ptr<const std::vector<File>> files)
      : folder_(std::move(folder)), files_(std::move(files)) {}

  std::string folder_;
  std::shared_ptr<const std::vector<File>> files_;
};

/// StoredTensors::Load of all that is read of a checkpoint.
Status LoadTensors(Env& env, const std::string& folder, const CheckpointManifest& manifest,
                   const std::vector<NamedTensor>& targets,
                   ExtraTensors extra = ExtraTensors::kRefuse, const Stream& stream = {});

}  // namespace weft::engine
