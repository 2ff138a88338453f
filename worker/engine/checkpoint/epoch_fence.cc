#include "worker/engine/checkpoint/epoch_fence.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

namespace weft::engine {
namespace {

std::optional<int64_t> EpochOfName(const std::string& name) {
  int64_t epoch = 0;
  auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), epoch);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return epoch;
}

}  // namespace

EpochFence::EpochFence(Env& env, const std::string& run_dir, int64_t epoch)
    : env_(env), folder_(JoinPath(run_dir, "epochs")), epoch_(epoch) {}

Result<int64_t> EpochFence::Newest() {
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> names, env_.ListDir(folder_));
  int64_t newest = 0;
  for (const std::string& name : names) newest = std::max(newest, EpochOfName(name).value_or(0));
  return newest;
}

Status EpochFence::Check() {
  WEFT_ASSIGN_OR_RETURN(int64_t newest, Newest());
  if (newest <= epoch_) return OkStatus();
  return ConflictError("attempt " + std::to_string(epoch_) + " of the job in " + DirName(folder_) +
                       " was replaced by attempt " + std::to_string(newest) +
                       " and must not write there any more");
}

Status EpochFence::Claim() {
  WEFT_RETURN_IF_ERROR(env_.CreateDirs(folder_));
  WEFT_RETURN_IF_ERROR(Check());
  WEFT_RETURN_IF_ERROR(env_.NewWritableFile(JoinPath(folder_, std::to_string(epoch_))).status());
  WEFT_RETURN_IF_ERROR(env_.SyncDir(folder_));
  WEFT_RETURN_IF_ERROR(env_.SyncDir(DirName(folder_)));
  // A newer attempt may have claimed meanwhile. Its file is safe: only older ones are removed.
  WEFT_RETURN_IF_ERROR(Check());
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> names, env_.ListDir(folder_));
  for (const std::string& name : names) {
    if (EpochOfName(name).value_or(epoch_) < epoch_) {
      (void)env_.RemoveFile(JoinPath(folder_, name));
    }
  }
  return OkStatus();
}

}  // namespace weft::engine
