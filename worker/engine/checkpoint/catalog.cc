#include "worker/engine/checkpoint/catalog.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>

#include "common/failpoint.h"
#include "common/hash.h"

namespace weft::engine {
namespace {

constexpr std::string_view kStepPrefix = "step-";
constexpr char kDamagedHint[] =
    "; hint: delete this folder; training resumes from the newest sound checkpoint";

std::optional<int64_t> StepOfName(const std::string& name) {
  if (name.rfind(kStepPrefix, 0) != 0) return std::nullopt;
  int64_t step = 0;
  const char* begin = name.data() + kStepPrefix.size();
  const char* end = name.data() + name.size();
  auto [stop, error] = std::from_chars(begin, end, step);
  if (error != std::errc() || stop != end || step < 0) return std::nullopt;
  return step;
}

Status VerifyFile(Env& env, const std::string& path, const CheckpointFile& file) {
  Result<uint64_t> size = env.FileSize(path);
  if (size.status().code() == StatusCode::kNotFound) {
    return CorruptError(path + " is missing" + kDamagedHint);
  }
  WEFT_RETURN_IF_ERROR(size.status());
  if (*size != static_cast<uint64_t>(file.bytes)) {
    return CorruptError(path + " has " + std::to_string(*size) + " bytes; the manifest says " +
                        std::to_string(file.bytes) + kDamagedHint);
  }
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> mapped, env.MapFile(path));
  if (std::string hash = HashHex(mapped->bytes()); hash != file.xxh3_128) {
    return CorruptError(path + " is damaged: its content hash is " + hash + ", the manifest says " +
                        file.xxh3_128 + kDamagedHint);
  }
  return OkStatus();
}

}  // namespace

std::string CheckpointsFolder(const std::string& run_dir) {
  return JoinPath(run_dir, "checkpoints");
}

std::string CheckpointPath(const std::string& run_dir, int64_t step) {
  char name[40];
  std::snprintf(name, sizeof(name), "step-%08lld", static_cast<long long>(step));
  return JoinPath(CheckpointsFolder(run_dir), name);
}

Result<std::vector<CheckpointInfo>> ListCheckpoints(Env& env, const std::string& run_dir) {
  const std::string folder = CheckpointsFolder(run_dir);
  std::vector<CheckpointInfo> checkpoints;
  if (!env.FileExists(folder)) return checkpoints;
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> names, env.ListDir(folder));
  for (const std::string& name : names) {
    std::optional<int64_t> step = StepOfName(name);
    if (!step) continue;
    std::string path = JoinPath(folder, name);
    const bool verified = env.FileExists(JoinPath(path, kVerifiedName));
    checkpoints.push_back({std::move(path), *step, verified});
  }
  std::sort(checkpoints.begin(), checkpoints.end(),
            [](const CheckpointInfo& a, const CheckpointInfo& b) { return a.step < b.step; });
  return checkpoints;
}

Result<CheckpointManifest> VerifyCheckpoint(Env& env, const std::string& path) {
  if (!env.FileExists(path)) return NotFoundError("there is no checkpoint in " + path);
  Result<CheckpointManifest> manifest = ReadManifest(env, path);
  if (manifest.status().code() == StatusCode::kNotFound) {
    return CorruptError(JoinPath(path, kManifestName) + " is missing" + kDamagedHint);
  }
  if (manifest.status().code() == StatusCode::kCorrupt) {
    return CorruptError(manifest.status().message() + kDamagedHint);
  }
  WEFT_RETURN_IF_ERROR(manifest.status());
  for (const CheckpointFile& file : manifest->files) {
    if (BaseName(file.name) != file.name || file.name == "..") {
      return CorruptError(path + ": the manifest names a file outside the folder: " + file.name +
                          kDamagedHint);
    }
    WEFT_RETURN_IF_ERROR(VerifyFile(env, JoinPath(path, file.name), file));
  }
  return manifest;
}

Result<CheckpointManifest> VerifyAndMark(Env& env, const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(CheckpointManifest manifest, VerifyCheckpoint(env, path));
  WEFT_RETURN_IF_ERROR(WriteFileAtomic(env, JoinPath(path, kVerifiedName), ""));
  return manifest;
}

Result<LatestSearch> LatestVerified(Env& env, const std::string& run_dir) {
  LatestSearch search;
  WEFT_ASSIGN_OR_RETURN(std::vector<CheckpointInfo> checkpoints, ListCheckpoints(env, run_dir));
  for (auto it = checkpoints.rbegin(); it != checkpoints.rend(); ++it) {
    Result<CheckpointManifest> manifest = VerifyCheckpoint(env, it->path);
    if (manifest.ok()) {
      search.latest = LatestCheckpoint{it->path, *std::move(manifest)};
      return search;
    }
    search.rejected.push_back(manifest.status());
  }
  return search;
}

std::vector<CheckpointInfo> ToCollect(const std::vector<CheckpointInfo>& checkpoints,
                                      const Retention& retention) {
  std::vector<CheckpointInfo> older;
  for (const CheckpointInfo& checkpoint : checkpoints) {
    if (checkpoint.step < retention.verified_now) older.push_back(checkpoint);
  }
  std::sort(older.begin(), older.end(),
            [](const CheckpointInfo& a, const CheckpointInfo& b) { return a.step > b.step; });
  std::vector<CheckpointInfo> collect;
  int64_t kept = 1;  // verified_now itself
  for (const CheckpointInfo& checkpoint : older) {
    if (checkpoint.verified && kept < retention.keep_last) {
      ++kept;
    } else if (checkpoint.step != retention.resume_step) {
      collect.push_back(checkpoint);
    }
  }
  return collect;
}

Result<int64_t> CollectCheckpoints(Env& env, const std::string& run_dir, EpochFence& fence,
                                   const Retention& retention) {
  WEFT_RETURN_IF_ERROR(fence.Check());
  WEFT_RETURN_IF_ERROR(RemoveLeftovers(env, run_dir));
  WEFT_ASSIGN_OR_RETURN(std::vector<CheckpointInfo> checkpoints, ListCheckpoints(env, run_dir));
  const std::string folder = CheckpointsFolder(run_dir);
  int64_t collected = 0;
  for (const CheckpointInfo& checkpoint : ToCollect(checkpoints, retention)) {
    WEFT_RETURN_IF_ERROR(fence.Check());
    WEFT_RETURN_IF_ERROR(Failpoint("checkpoint.before_collect"));
    const std::string doomed =
        JoinPath(folder, kTemporaryPrefix + ("old-" + BaseName(checkpoint.path)));
    WEFT_RETURN_IF_ERROR(env.Rename(checkpoint.path, doomed));
    // Durable before the files go: a crash must not bring back a checkpoint without them.
    WEFT_RETURN_IF_ERROR(env.SyncDir(folder));
    WEFT_RETURN_IF_ERROR(Failpoint("checkpoint.during_collect"));
    WEFT_RETURN_IF_ERROR(env.RemoveTree(doomed));
    ++collected;
  }
  return collected;
}

Status RemoveLeftovers(Env& env, const std::string& run_dir) {
  const std::string folder = CheckpointsFolder(run_dir);
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> names, env.ListDir(folder));
  for (const std::string& name : names) {
    if (name.rfind(kTemporaryPrefix, 0) == 0) {
      WEFT_RETURN_IF_ERROR(env.RemoveTree(JoinPath(folder, name)));
    }
  }
  return OkStatus();
}

}  // namespace weft::engine
