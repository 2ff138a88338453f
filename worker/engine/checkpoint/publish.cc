#include "worker/engine/checkpoint/publish.h"

#include "common/failpoint.h"
#include "common/memory_errors.h"
#include "common/version.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/engine/checkpoint/tensor_files.h"

namespace weft::engine {
namespace {

Status WriteFolder(Env& env, const std::string& folder, CheckpointManifest& manifest,
                   const std::vector<NamedTensor>& tensors, CheckpointPeers* peers) {
  WEFT_RETURN_IF_ERROR(Failpoint("checkpoint.before_write"));
  WEFT_RETURN_IF_ERROR(env.RemoveTree(folder));
  WEFT_RETURN_IF_ERROR(env.CreateDirs(folder));
  if (peers != nullptr) WEFT_RETURN_IF_ERROR(peers->Invite());
  WEFT_ASSIGN_OR_RETURN(
      CheckpointFile file,
      WriteTensorFile(env, folder, 0, peers != nullptr ? peers->ranks() : 1, tensors));
  manifest.files = {std::move(file)};
  if (peers != nullptr) {
    WEFT_ASSIGN_OR_RETURN(std::vector<CheckpointFile> others, peers->Files());
    for (CheckpointFile& other : others) manifest.files.push_back(std::move(other));
  }
  WEFT_RETURN_IF_ERROR(Failpoint("checkpoint.after_shards"));
  WEFT_RETURN_IF_ERROR(
      WriteFileAtomic(env, JoinPath(folder, kManifestName), ManifestText(manifest)));
  return Failpoint("checkpoint.after_manifest");
}

/// `<checkpoints>/.tmp-<prefix>step-00000100-epoch-7`.
std::string TemporaryFolder(const std::string& run_dir, const std::string& prefix, int64_t step,
                            int64_t epoch) {
  return JoinPath(CheckpointsFolder(run_dir), kTemporaryPrefix + prefix +
                                                  BaseName(CheckpointPath(run_dir, step)) +
                                                  "-epoch-" + std::to_string(epoch));
}

Result<CheckpointManifest> Publish(Env& env, const std::string& run_dir, EpochFence& fence,
                                   CheckpointManifest manifest,
                                   const std::vector<NamedTensor>& tensors,
                                   CheckpointPeers* peers) {
  const std::string target = CheckpointPath(run_dir, manifest.step);
  const std::string work = TemporaryFolder(run_dir, "", manifest.step, fence.epoch());
  const std::string replaced = TemporaryFolder(run_dir, "replaced-", manifest.step, fence.epoch());
  manifest.weft_version = kVersion;
  manifest.epoch = fence.epoch();

  WEFT_RETURN_IF_ERROR(fence.Check());
  const bool replaces = env.FileExists(target);
  if (replaces) {
    if (Result<CheckpointManifest> sound = VerifyCheckpoint(env, target); sound.ok()) return sound;
  }
  auto publish = [&]() -> Status {
    WEFT_RETURN_IF_ERROR(WriteFolder(env, work, manifest, tensors, peers));
    WEFT_RETURN_IF_ERROR(fence.Check());
    if (replaces) {
      WEFT_RETURN_IF_ERROR(env.RemoveTree(replaced));
      WEFT_RETURN_IF_ERROR(env.Rename(target, replaced));
    }
    WEFT_RETURN_IF_ERROR(env.Rename(work, target));
    return env.SyncDir(CheckpointsFolder(run_dir));
  };
  if (Status status = CatchExhaustion("writing a checkpoint", publish); !status.ok()) {
    (void)env.RemoveTree(work);
    return status;
  }
  (void)env.RemoveTree(replaced);
  WEFT_RETURN_IF_ERROR(Failpoint("checkpoint.after_publish"));
  return manifest;
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
                                             const std::vector<NamedTensor>& tensors,
                                             CheckpointPeers* peers) {
  Result<CheckpointManifest> published =
      Publish(env, run_dir, fence, std::move(manifest), tensors, peers);
  if (peers != nullptr) peers->End();
  return published;
}

Status WriteShare(Env& env, const std::string& run_dir, int64_t epoch, int64_t step,
                  const std::vector<NamedTensor>& tensors, CheckpointPeers& peers) {
  WEFT_ASSIGN_OR_RETURN(const bool invited, peers.Invited());
  if (!invited) return OkStatus();
  const std::string folder = TemporaryFolder(run_dir, "", step, epoch);
  const Result<CheckpointFile> file =
      CatchExhaustion("writing a share of a checkpoint", [&]() -> Result<CheckpointFile> {
        WEFT_RETURN_IF_ERROR(Failpoint("checkpoint.before_share"));
        return WriteTensorFile(env, folder, peers.rank(), peers.ranks(), tensors);
      });
  WEFT_RETURN_IF_ERROR(peers.ReportFile(file));
  return file.status();
}

}  // namespace weft::engine
