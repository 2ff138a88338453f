#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/env.h"

namespace weft {

/// The machine's file system as jobs see it: what lies outside some folders is not read, whatever
/// links lead there.
///
/// A name is followed once, with all its links. What it leads to is held open, its place is
/// compared with the folders, and it is then read through what is held: a link that changes in
/// between changes nothing. Links that stay within the folders work as they do elsewhere. Needs
/// /proc.
///
/// FileExists says of any name whether there is something. Writing is not confined: what a process
/// writes for a job is in folders of its own. Thread-safe.
class ConfinedEnv : public Env {
 public:
  /// Reads below the folders, or everything when there are none. A folder is followed now, links
  /// and all, as far as it exists. `hint` says where the folders are given.
  ConfinedEnv(const std::vector<std::string>& folders, std::string hint);

  /// These are kInvalid, of FailureKind::kOutside, where a path leads out of the folders.
  Result<std::unique_ptr<MappedFile>> MapFile(const std::string& path) override;
  Status ReadAt(const std::string& path, uint64_t offset, std::span<std::byte> out) override;
  Result<uint64_t> FileSize(const std::string& path) override;
  Result<std::vector<std::string>> ListDir(const std::string& path) override;

  bool FileExists(const std::string& path) override;
  Result<std::unique_ptr<WritableFile>> NewWritableFile(const std::string& path) override;
  Status CreateDirs(const std::string& path) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Status SyncDir(const std::string& path) override;
  Status RemoveFile(const std::string& path) override;
  Status RemoveTree(const std::string& path) override;
  Result<uint64_t> FreeBytes(const std::string& path) override;

 private:
  /// Calls `read` with a name of what the path leads to, if that is within the folders.
  template <class Read>
  auto Within(const std::string& path, Read read) const;
  /// OK when what is held lies within.
  Status CheckPlace(const std::string& held, const std::string& path) const;

  Env& files_ = Env::Posix();
  std::vector<std::string> folders_;  // canonical, without a slash at the end
  std::string hint_;
};

}  // namespace weft
