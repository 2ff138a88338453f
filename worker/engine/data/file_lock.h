#pragma once

#include <string>

#include "common/status.h"

namespace weft::engine {

/// An exclusive lock between processes and threads of one machine, held until the object goes. The
/// file stays: removing it would let two holders lock two files of one name.
class FileLock {
 public:
  /// Creates the file when needed and waits until no one else holds the lock.
  static Result<FileLock> Acquire(const std::string& path);

  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace weft::engine
