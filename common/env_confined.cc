#include "common/env_confined.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <type_traits>
#include <utility>

#include "common/scoped_fd.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

/// The place that a folder has now; empty when it cannot be known, and then nothing is within it.
std::string PlaceOf(const std::string& folder) {
  std::error_code error;
  const fs::path absolute = fs::absolute(folder, error);
  if (error) return "";
  std::string place = fs::weakly_canonical(absolute, error);
  if (error) return "";
  while (place.size() > 1 && place.back() == '/') place.pop_back();
  return place;
}

bool LiesWithin(const std::string& place, const std::string& folder) {
  if (folder.empty()) return false;
  return folder == "/" || place == folder || place.starts_with(folder + "/");
}

Status StatusOf(const Status& status) {
  return status;
}
template <class T>
Status StatusOf(const Result<T>& result) {
  return result.status();
}

/// The failure with the name that the caller gave.
Status Renamed(const Status& failure, const std::string& held, const std::string& path) {
  std::string message = failure.message();
  if (const size_t at = message.find(held); at != std::string::npos) {
    message.replace(at, held.size(), path);
  }
  return {failure.code(), std::move(message), failure.kind()};
}

}  // namespace

ConfinedEnv::ConfinedEnv(const std::vector<std::string>& folders, std::string hint)
    : hint_(std::move(hint)) {
  for (const std::string& folder : folders) folders_.push_back(PlaceOf(folder));
}

Status ConfinedEnv::CheckPlace(const std::string& held, const std::string& path) const {
  std::error_code error;
  const std::string place = fs::read_symlink(held, error);
  if (error) return ErrnoError("reading where " + path + " leads, by " + held, error.value());
  const bool within = place.starts_with('/') &&
                      std::any_of(folders_.begin(), folders_.end(), [&](const std::string& folder) {
                        return LiesWithin(place, folder);
                      });
  if (within) return OkStatus();
  return {StatusCode::kInvalid, path + " leads out of the folders that are allowed; hint: " + hint_,
          FailureKind::kOutside};
}

template <class Read>
auto ConfinedEnv::Within(const std::string& path, Read read) const {
  using Outcome = std::invoke_result_t<Read, const std::string&>;
  if (folders_.empty()) return read(path);
  // Opens nothing that could have an effect, and needs no right to read.
  const ScopedFd fd(open(path.c_str(), O_PATH | O_CLOEXEC));
  if (fd.get() < 0) return Outcome(ErrnoError("opening " + path, errno));
  const std::string held = "/proc/self/fd/" + std::to_string(fd.get());
  if (Status status = CheckPlace(held, path); !status.ok()) return Outcome(std::move(status));
  Outcome outcome = read(held);
  if (outcome.ok()) return outcome;
  return Outcome(Renamed(StatusOf(outcome), held, path));
}

Result<std::unique_ptr<MappedFile>> ConfinedEnv::MapFile(const std::string& path) {
  return Within(path, [&](const std::string& held) { return files_.MapFile(held); });
}

Status ConfinedEnv::ReadAt(const std::string& path, uint64_t offset, std::span<std::byte> out) {
  return Within(path, [&](const std::string& held) { return files_.ReadAt(held, offset, out); });
}

Result<uint64_t> ConfinedEnv::FileSize(const std::string& path) {
  return Within(path, [&](const std::string& held) { return files_.FileSize(held); });
}

Result<std::vector<std::string>> ConfinedEnv::ListDir(const std::string& path) {
  return Within(path, [&](const std::string& held) { return files_.ListDir(held); });
}

bool ConfinedEnv::FileExists(const std::string& path) {
  return files_.FileExists(path);
}

Result<std::unique_ptr<WritableFile>> ConfinedEnv::NewWritableFile(const std::string& path) {
  return files_.NewWritableFile(path);
}

Status ConfinedEnv::CreateDirs(const std::string& path) {
  return files_.CreateDirs(path);
}

Status ConfinedEnv::Rename(const std::string& from, const std::string& to) {
  return files_.Rename(from, to);
}

Status ConfinedEnv::SyncDir(const std::string& path) {
  return files_.SyncDir(path);
}

Status ConfinedEnv::RemoveFile(const std::string& path) {
  return files_.RemoveFile(path);
}

Status ConfinedEnv::RemoveTree(const std::string& path) {
  return files_.RemoveTree(path);
}

Result<uint64_t> ConfinedEnv::FreeBytes(const std::string& path) {
  return files_.FreeBytes(path);
}

}  // namespace weft
