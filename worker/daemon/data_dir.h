#pragma once

#include <string>

#include "common/status.h"

namespace weft::daemon {

/// The daemon's own folder, held by one process at a time:
///   lock          flock(2) of the running daemon
///   worker.json   the worker's id
///   profile.json  what the probe measured
///   logs/         log lines waiting for the coordinator; emptied at start
///   attempts/     attempt specs of running ranks; emptied at start
///   unsent.pb     ends of attempts that the coordinator does not know yet
///   cache/        token shards, shared by the jobs of this machine
/// Owning an object means holding the lock.
class DataDir {
 public:
  /// Creates what is missing. kConflict when another daemon holds the folder. `worker_id` overrides
  /// the stored id and is stored; empty: the stored one, or a new one from the host's name.
  static Result<DataDir> Open(const std::string& path, const std::string& worker_id);

  ~DataDir();
  DataDir(DataDir&& other) noexcept;
  DataDir& operator=(DataDir&&) = delete;

  /// Absolute, without symbolic links.
  const std::string& path() const { return path_; }
  const std::string& worker_id() const { return worker_id_; }
  std::string ProfilePath() const { return path_ + "/profile.json"; }
  std::string DevicesPath() const { return path_ + "/devices.json"; }
  std::string UnsentPath() const { return path_ + "/unsent.pb"; }
  std::string LogDir() const { return path_ + "/logs"; }
  std::string SpecDir() const { return path_ + "/attempts"; }
  std::string CacheDir() const { return path_ + "/cache"; }

 private:
  DataDir(std::string path, int lock_fd) : path_(std::move(path)), lock_fd_(lock_fd) {}

  std::string path_;
  std::string worker_id_;
  int lock_fd_;
};

}  // namespace weft::daemon
