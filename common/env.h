#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace weft {

/// A file being written from its start. Not thread-safe. Closing without Sync gives no durability.
class WritableFile {
 public:
  virtual ~WritableFile() = default;

  virtual Status Append(std::span<const std::byte> bytes) = 0;
  Status Append(std::string_view text) { return Append(std::as_bytes(std::span(text))); }

  /// fdatasync: on OK the bytes written so far survive power loss.
  virtual Status Sync() = 0;

  /// Reports errors that close(2) reports. The destructor closes silently.
  virtual Status Close() = 0;
};

/// A read-only view of a whole file. The bytes stay valid as long as the object.
class MappedFile {
 public:
  virtual ~MappedFile() = default;
  virtual std::span<const std::byte> bytes() const = 0;
};

/// The file system. Everything durable goes through it, so that FaultEnv (common/env_fault.h) can
/// lose unsynced data, tear writes and fill the disk. Thread-safe. Errors name the path.
class Env {
 public:
  virtual ~Env() = default;

  virtual Result<std::unique_ptr<WritableFile>> NewWritableFile(const std::string& path) = 0;
  virtual Result<std::unique_ptr<MappedFile>> MapFile(const std::string& path) = 0;

  /// Reads `size` bytes at `offset` into `out`; kCorrupt when the file is shorter.
  virtual Status ReadAt(const std::string& path, uint64_t offset, std::span<std::byte> out) = 0;

  virtual bool FileExists(const std::string& path) = 0;
  virtual Result<uint64_t> FileSize(const std::string& path) = 0;

  /// Names (not paths) in a directory, sorted, without "." and "..".
  virtual Result<std::vector<std::string>> ListDir(const std::string& path) = 0;

  /// mkdir -p.
  virtual Status CreateDirs(const std::string& path) = 0;

  /// Atomic replacement. Call SyncDir on the parent to make it durable.
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  virtual Status SyncDir(const std::string& path) = 0;
  virtual Status RemoveFile(const std::string& path) = 0;

  /// rm -r; OK when there is nothing.
  virtual Status RemoveTree(const std::string& path) = 0;

  /// Bytes that an unprivileged writer may still use on the file system of `path`.
  virtual Result<uint64_t> FreeBytes(const std::string& path) = 0;

  /// The machine's file system.
  static Env& Posix();
};

/// Reads a whole file; kExhausted when it is longer than `limit` bytes.
Result<std::string> ReadFile(Env& env, const std::string& path, uint64_t limit = uint64_t{1} << 30);

/// Whether `path` is a directory that can be listed.
bool IsFolder(Env& env, const std::string& path);

/// Writes `text` to a temporary name next to `path`, syncs, renames and syncs the directory: after
/// OK the new content is durable, and no crash leaves half of it visible.
Status WriteFileAtomic(Env& env, const std::string& path, std::string_view text);

/// `base/name` with one slash.
std::string JoinPath(std::string_view base, std::string_view name);

/// Everything before the last slash, "." if there is none.
std::string DirName(std::string_view path);

/// Everything after the last slash.
std::string BaseName(std::string_view path);

}  // namespace weft
