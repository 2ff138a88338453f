#include "worker/engine/checkpoint/gathered.h"

#include "common/version.h"
#include "worker/engine/checkpoint/catalog.h"

namespace weft::engine {
namespace {

Status Publish(Env& env, const std::string& run_dir, EpochFence& fence, CheckpointManifest manifest,
               const std::string& folder) {
  const std::string target = CheckpointPath(run_dir, manifest.step);
  manifest.weft_version = kVersion;
  manifest.epoch = fence.epoch();
  WEFT_RETURN_IF_ERROR(
      WriteFileAtomic(env, JoinPath(folder, kManifestName), ManifestText(manifest)));
  WEFT_RETURN_IF_ERROR(VerifyCheckpoint(env, folder).status());
  WEFT_RETURN_IF_ERROR(fence.Check());
  const std::string replaced = folder + "-replaced";
  if (env.FileExists(target)) {
    if (VerifyCheckpoint(env, target).ok()) return env.RemoveTree(folder);
    WEFT_RETURN_IF_ERROR(env.Rename(target, replaced));
  }
  WEFT_RETURN_IF_ERROR(env.Rename(folder, target));
  WEFT_RETURN_IF_ERROR(env.SyncDir(CheckpointsFolder(run_dir)));
  WEFT_RETURN_IF_ERROR(env.RemoveTree(replaced));
  return VerifyAndMark(env, target).status();
}

}  // namespace

std::string GatherFolder(const std::string& run_dir, int64_t step, int64_t epoch) {
  return JoinPath(CheckpointsFolder(run_dir), kTemporaryPrefix + std::string("gathered-") +
                                                  BaseName(CheckpointPath(run_dir, step)) +
                                                  "-epoch-" + std::to_string(epoch));
}

Status PublishGathered(Env& env, const std::string& run_dir, EpochFence& fence,
                       CheckpointManifest manifest) {
  const std::string folder = GatherFolder(run_dir, manifest.step, fence.epoch());
  Status status = Publish(env, run_dir, fence, std::move(manifest), folder);
  if (!status.ok()) (void)env.RemoveTree(folder);
  return status;
}

}  // namespace weft::engine
