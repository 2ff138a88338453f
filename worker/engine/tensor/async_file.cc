#include "worker/engine/tensor/async_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/log.h"

namespace weft::engine {

Status IoError(bool write, const std::string& path, uint64_t offset, int error) {
  const std::string what =
      std::string(write ? "writing " : "reading ") + path + " at byte " + std::to_string(offset);
  if (error == 0) return CorruptError(what + ": the file ends too early; hint: leave it alone");
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return DiskFullError(what + ": " + std::strerror(error) +
                         "; hint: a disk with more room (resources.offload_directory)");
  }
  return UnavailableError(what + ": " + std::strerror(error));
}

Result<std::unique_ptr<AsyncFile>> AsyncFile::Create(const std::string& directory, int64_t bytes,
                                                     Queue queue) {
  static std::atomic<int> number = 0;
  const std::string path =
      directory + "/weft-" + std::to_string(getpid()) + "-" + std::to_string(++number);
  constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
  int file = open(path.c_str(), kFlags | O_DIRECT, 0600);
  const bool direct = file >= 0 || errno != EINVAL;
  if (!direct) {
    // The file system has no such reads and writes, but may have made the file.
    (void)unlink(path.c_str());
    file = open(path.c_str(), kFlags, 0600);
  }
  if (file < 0) {
    return UnavailableError("making " + path + ": " + std::strerror(errno) +
                            "; hint: resources.offload_directory is a folder that the worker may "
                            "write to");
  }
  (void)unlink(path.c_str());
  std::unique_ptr<AsyncFile> made(new AsyncFile(path, file));
  if (const int error = posix_fallocate(file, 0, bytes); error != 0) {
    return DiskFullError("making room for " + std::to_string(bytes) + " bytes in " + path + ": " +
                         std::strerror(error) +
                         "; hint: a disk with more room (resources.offload_directory)");
  }
  WEFT_ASSIGN_OR_RETURN(made->queue_, made->NewQueue(queue));
  WEFT_LOG_INFO << path << ": " << bytes << " bytes through " << made->queue_->name()
                << (direct ? ", around the page cache" : ", through the page cache");
  return made;
}

Result<std::unique_ptr<IoQueue>> AsyncFile::NewQueue(Queue queue) const {
  if (queue == Queue::kThreads) return NewThreadQueue(file_, path_);
  Result<std::unique_ptr<IoQueue>> best = NewUringQueue(file_, path_);
  if (best.ok()) return best;
  WEFT_LOG_INFO << path_ << " is read and written by threads: " << best.status().message();
  return NewThreadQueue(file_, path_);
}

AsyncFile::~AsyncFile() {
  queue_.reset();
  close(file_);
}

}  // namespace weft::engine
