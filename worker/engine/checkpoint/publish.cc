#include "worker/engine/checkpoint/publish.h"

#include "common/failpoint.h"
#include "common/memory_errors.h"
#include "common/version.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/engine/checkpoint/tensor_files.h"

namespace weft::engine {
namespace {

Status WriteFolder(Env& env, const std::string& folder, CheckpointManifest& manifest,
                   const std::vector<NamedTensor>& tensors) {
  WEFT_RETURN_IF_ERROR(Failpoint("checkpoint.before_write"));
  WEFT_RETURN_IF_ERROR(env.RemoveTree(folder));
  WEFT_RETURN_IF_ERROR(env.CreateDirs(folder));
  WEFT_ASSIGN_OR_RETURN(CheckpointFile file, WriteTensorFile(env, folder, 0, 1, tensors));
  manifest.files = {std::move(file)};
  WEFT_RETURN_IF_ERROR(Failpoint("checkpoint.after_shards"));
  WEFT_RETURN_IF_ERROR(
      WriteFileAtomic(env, JoinPath(folder, kManifestName), ManifestText(manifest)));
  return Failpoint("checkpoint.after_manifest");
}

}  // namespace

Status PrepareCheckpointsFolder(Env& env, const std::string& run_dir) {
  WEFT_RETURN_IF_ERROR(env.CreateDirs(CheckpointsFolder(run_dir)));
  WEFT_RETURN_IF_ERROR(env.SyncDir(run_dir));
  WEFT_RETURN_IF_ERROR(env.SyncDir(DirName(run_dir)));
  return RemoveLeftovers(env, run_dir);
}

Result<CheckpointManifest> PublishCheckpoint(Env& env, const std::string& run_dir,
                                             EpochFence& fence, CheckpointManifest manifest,
                                             const std::vector<NamedTensor>& tensors) {
  const std::string parent = CheckpointsFolder(run_dir);
  const std::string target = CheckpointPath(run_dir, manifest.step);
  const std::string unique = BaseName(target) + "-epoch-" + std::to_string(fence.epoch());
  const std::string work = JoinPath(parent, kTemporaryPrefix + unique);
  const std::string replaced = JoinPath(parent, kTemporaryPrefix + ("replaced-" + unique));
  manifest.weft_version = kVersion;
  manifest.epoch = fence.epoch();

  WEFT_RETURN_IF_ERROR(fence.Check());
  const bool replaces = env.FileExists(target);
  if (replaces) {
    if (Result<CheckpointManifest> sound = VerifyCheckpoint(env, target); sound.ok()) return sound;
  }
  auto publish = [&]() -> Status {
    WEFT_RETURN_IF_ERROR(WriteFolder(env, work, manifest, tensors));
    WEFT_RETURN_IF_ERROR(fence.Check());
    if (replaces) {
      WEFT_RETURN_IF_ERROR(env.RemoveTree(replaced));
      WEFT_RETURN_IF_ERROR(env.Rename(target, replaced));
    }
    WEFT_RETURN_IF_ERROR(env.Rename(work, target));
    return env.SyncDir(parent);
  };
  if (Status status = CatchExhaustion("writing a checkpoint", publish); !status.ok()) {
    (void)env.RemoveTree(work);
    return status;
  }
  (void)env.RemoveTree(replaced);
  WEFT_RETURN_IF_ERROR(Failpoint("checkpoint.after_publish"));
  return manifest;
}

}  // namespace weft::engine
