// A library for LD_PRELOAD that makes writes to some files fail, for tests of what a process does
// when its disk does:
//   WEFT_IO_FAULT_PATH     files whose path contains this
//   WEFT_IO_FAULT_CONTROL  a file that says what fails while it exists: "write ENOSPC", "write EIO"
//   or
//                          "sync EIO"
// Writes fail before anything is written.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

enum class Kind { kWrite, kSync };

/// The error that the operation on the file is to have; 0: none.
int FaultOf(int fd, Kind kind) {
  static const char* const kPath = std::getenv("WEFT_IO_FAULT_PATH");
  static const char* const kControl = std::getenv("WEFT_IO_FAULT_CONTROL");
  if (kPath == nullptr || kControl == nullptr) return 0;
  const int control = open(kControl, O_RDONLY | O_CLOEXEC);
  if (control < 0) return 0;
  char said[32] = {};
  const ssize_t length = read(control, said, sizeof(said) - 1);
  close(control);
  if (length <= 0) return 0;
  if (std::strncmp(said, kind == Kind::kWrite ? "write " : "sync ", kind == Kind::kWrite ? 6 : 5) !=
      0) {
    return 0;
  }
  char link[64];
  char path[4096];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof(path) - 1);
  if (size <= 0) return 0;
  path[size] = '\0';
  if (std::strstr(path, kPath) == nullptr) return 0;
  return std::strstr(said, "ENOSPC") != nullptr ? ENOSPC : EIO;
}

/// The function of that name that comes after this library.
template <class Function>
Function Next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* bytes, size_t count) {
  static const auto next = Next<ssize_t (*)(int, const void*, size_t)>("write");
  if (const int error = FaultOf(fd, Kind::kWrite); error != 0) {
    errno = error;
    return -1;
  }
  return next(fd, bytes, count);
}

ssize_t pwrite(int fd, const void* bytes, size_t count, off_t offset) {
  static const auto next = Next<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  if (const int error = FaultOf(fd, Kind::kWrite); error != 0) {
    errno = error;
    return -1;
  }
  return next(fd, bytes, count, offset);
}

ssize_t pwrite64(int fd, const void* bytes, size_t count, off_t offset) {
  return pwrite(fd, bytes, count, offset);
}

int fsync(int fd) {
  static const auto next = Next<int (*)(int)>("fsync");
  if (const int error = FaultOf(fd, Kind::kSync); error != 0) {
    errno = error;
    return -1;
  }
  return next(fd);
}

int fdatasync(int fd) {
  static const auto next = Next<int (*)(int)>("fdatasync");
  if (const int error = FaultOf(fd, Kind::kSync); error != 0) {
    errno = error;
    return -1;
  }
  return next(fd);
}

}  // extern "C"
