#pragma once

#include <mutex>
#include <vector>

#include "common/check.h"
#include "common/env_fault.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/comm/collective.h"
#include "worker/engine/testing/saved_state.h"
#include "worker/engine/train/trainer.h"

namespace weft::engine {

/// A training state as files that the ranks of a mesh write and others read, for tests.
class SavedFiles {
 public:
  SavedFiles() { WEFT_CHECK(env_.CreateDirs(kFolder).ok(), "folder"); }

  /// Writes what a rank saves. All ranks may do so at once.
  void Write(Trainer& trainer, const Collective& world) {
    std::vector<NamedTensor> tensors = trainer.StateTensors();
    std::erase_if(tensors, [](const NamedTensor& tensor) { return !tensor.saved; });
    const std::lock_guard lock(mutex_);
    state_.Add(tensors);
    if (tensors.empty()) return;  // other ranks save all that it has
    const auto file = WriteTensorFile(env_, kFolder, world.rank(), world.size(), tensors);
    WEFT_CHECK(file.ok(), file.status().message());
    manifest_.files.push_back(*file);
  }

  /// Fills the whole state of a rank.
  Status Read(Trainer& trainer) {
    return LoadTensors(env_, kFolder, manifest_, trainer.StateTensors(), ExtraTensors::kIgnore);
  }

  /// What is in the files.
  const SavedState& state() const { return state_; }

 private:
  static constexpr char kFolder[] = "/saved";

  FaultEnv env_;
  std::mutex mutex_;
  CheckpointManifest manifest_;
  SavedState state_;
};

}  // namespace weft::engine
