#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/env.h"
#include "common/rng.h"

namespace weft {

/// A file system in memory that behaves as badly as a real one may: for tests of crash safety.
///
/// It keeps, besides what programs see, what a power loss would leave: the bytes of a file as of
/// its last Sync, the entries of a directory as of its last SyncDir. Paths are absolute or relative
/// alike; "/" and "." exist. Thread-safe.
class FaultEnv : public Env {
 public:
  FaultEnv();
  ~FaultEnv() override;

  /// How much a crash leaves of the things that were not synced.
  enum class Unsynced {
    kLost,  ///< Nothing: the harshest reading of POSIX.
    kTorn,  ///< A random first part of each file's new bytes and of each directory's changes.
  };

  /// Power loss and restart: forgets what was not durable and clears every armed fault. Open
  /// WritableFiles fail from now on; mapped files stay readable.
  void SimulateCrash(Unsynced unsynced = Unsynced::kLost, uint64_t seed = 0);

  /// Makes everything durable, as a test's starting point.
  void SyncAll();

  /// Operations that change the file system (create, append, sync, rename, make, sync or remove a
  /// directory, remove) so far.
  int64_t operations() const;

  /// The operation with this number (the next one is operations() + 1) fails with `error` and has
  /// no effect, except an append, which writes a first half. Later ones work.
  void FailOperation(int64_t number, Status error);

  /// The operation with this number and all later ones, reads too, fail, as if the process had died
  /// there, until SimulateCrash.
  void CrashAtOperation(int64_t number);

  /// Bytes all files may have together; an append past it writes what fits and is kExhausted.
  void SetCapacity(uint64_t bytes);

  /// Inverts the bits of `mask` in one stored byte. WEFT_CHECKs that it exists.
  void FlipBits(const std::string& path, uint64_t offset, uint8_t mask);

  Result<std::unique_ptr<WritableFile>> NewWritableFile(const std::string& path) override;
  Result<std::unique_ptr<MappedFile>> MapFile(const std::string& path) override;
  Status ReadAt(const std::string& path, uint64_t offset, std::span<std::byte> out) override;
  bool FileExists(const std::string& path) override;
  Result<uint64_t> FileSize(const std::string& path) override;
  Result<std::vector<std::string>> ListDir(const std::string& path) override;
  Status CreateDirs(const std::string& path) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Status SyncDir(const std::string& path) override;
  Status RemoveFile(const std::string& path) override;
  Status RemoveTree(const std::string& path) override;
  Result<uint64_t> FreeBytes(const std::string& path) override;

 private:
  class Writer;
  struct Node;
  struct Change;
  struct Place;
  using NodePtr = std::shared_ptr<Node>;

  /// All below: mutex_ is held.
  Status Operation(std::string_view what, const std::string& path);
  Status Alive(const std::string& path) const;
  NodePtr Find(const std::string& path) const;
  Result<NodePtr> FindFile(const std::string& what, const std::string& path) const;
  Result<Place> FindPlace(const std::string& what, const std::string& path) const;
  static void SetEntry(const NodePtr& dir, const std::string& name, NodePtr node);
  static uint64_t Bytes(const NodePtr& node);
  static void CrashNode(const NodePtr& node, PhiloxStream* torn);
  static void SyncNode(const NodePtr& node);

  mutable std::mutex mutex_;
  NodePtr root_;
  int64_t operations_ = 0;
  int64_t generation_ = 0;  ///< Counts crashes; a Writer of an older one is dead.
  std::optional<int64_t> fail_at_;
  Status fail_with_;
  std::optional<int64_t> crash_at_;
  std::optional<uint64_t> capacity_;
};

}  // namespace weft
