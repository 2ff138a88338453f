#include "common/env.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "common/scoped_fd.h"

namespace weft {
namespace {

/// Large files go to the disk while they are written, a window behind what is appended: the last
/// sync of one is short, and whoever watches the process sees at any time how fast bytes get there.
class PosixWritableFile : public WritableFile {
 public:
  PosixWritableFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  ~PosixWritableFile() override {
    if (fd_ >= 0) close(fd_);
  }

  using WritableFile::Append;
  Status Append(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      ssize_t written = write(fd_, bytes.data(), std::min(bytes.size(), kPieceBytes));
      if (written < 0) {
        if (errno == EINTR) continue;
        return ErrnoError("writing " + path_, errno);
      }
      bytes = bytes.subspan(static_cast<size_t>(written));
      size_ += written;
      if (size_ - flushing_from_ >= kWindowBytes) WEFT_RETURN_IF_ERROR(Flush());
    }
    return OkStatus();
  }

  Status Sync() override {
    if (fdatasync(fd_) != 0) return ErrnoError("syncing " + path_, errno);
    return OkStatus();
  }

  Status Close() override {
    int fd = std::exchange(fd_, -1);
    if (fd >= 0 && close(fd) != 0) return ErrnoError("closing " + path_, errno);
    return OkStatus();
  }

 private:
  static constexpr size_t kPieceBytes = size_t{4} << 20;
  static constexpr off_t kWindowBytes = off_t{16} << 20;

  /// Begins to write the newest window to the disk, and waits for the one before.
  Status Flush() {
    int flushed =
        sync_file_range(fd_, flushing_from_, size_ - flushing_from_, SYNC_FILE_RANGE_WRITE);
    if (flushed == 0 && flushing_from_ > flushed_to_) {
      flushed = sync_file_range(
          fd_, flushed_to_, flushing_from_ - flushed_to_,
          SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    }
    // The error of a disk is reported once, so that Sync would not have it. What cannot flush
    // ranges waits for Sync.
    if (flushed != 0 && (errno == EIO || errno == ENOSPC || errno == EDQUOT)) {
      return ErrnoError("writing " + path_, errno);
    }
    flushed_to_ = flushing_from_;
    flushing_from_ = size_;
    return OkStatus();
  }

  int fd_;
  std::string path_;
  off_t size_ = 0;
  off_t flushed_to_ = 0;     ///< On the disk.
  off_t flushing_from_ = 0;  ///< On the way there up to here, from flushed_to_ on.
};

class PosixMappedFile : public MappedFile {
 public:
  PosixMappedFile(void* data, size_t size) : data_(data), size_(size) {}
  ~PosixMappedFile() override {
    if (size_ > 0) munmap(data_, size_);
  }
  PosixMappedFile(const PosixMappedFile&) = delete;
  PosixMappedFile& operator=(const PosixMappedFile&) = delete;
  std::span<const std::byte> bytes() const override {
    return {static_cast<const std::byte*>(data_), size_};
  }

 private:
  void* data_;
  size_t size_;
};

class PosixEnv : public Env {
 public:
  Result<std::unique_ptr<WritableFile>> NewWritableFile(const std::string& path) override {
    int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) return ErrnoError("creating " + path, errno);
    return std::unique_ptr<WritableFile>(std::make_unique<PosixWritableFile>(fd, path));
  }

  Result<std::unique_ptr<MappedFile>> MapFile(const std::string& path) override {
    ScopedFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (fd.get() < 0) return ErrnoError("opening " + path, errno);
    struct stat info {};
    if (fstat(fd.get(), &info) != 0) return ErrnoError("reading the size of " + path, errno);
    if (!S_ISREG(info.st_mode)) return InvalidError(path + " is not a regular file");
    auto size = static_cast<size_t>(info.st_size);
    void* data = nullptr;
    if (size > 0) {
      data = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
      if (data == MAP_FAILED) return ErrnoError("mapping " + path, errno);
    }
    return std::unique_ptr<MappedFile>(std::make_unique<PosixMappedFile>(data, size));
  }

  Status ReadAt(const std::string& path, uint64_t offset, std::span<std::byte> out) override {
    ScopedFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (fd.get() < 0) return ErrnoError("opening " + path, errno);
    while (!out.empty()) {
      ssize_t got = pread(fd.get(), out.data(), out.size(), static_cast<off_t>(offset));
      if (got < 0) {
        if (errno == EINTR) continue;
        return ErrnoError("reading " + path, errno);
      }
      if (got == 0) {
        return CorruptError(path + " ends at byte " + std::to_string(offset) + ", " +
                            std::to_string(out.size()) + " bytes short");
      }
      out = out.subspan(static_cast<size_t>(got));
      offset += static_cast<uint64_t>(got);
    }
    return OkStatus();
  }

  bool FileExists(const std::string& path) override { return access(path.c_str(), F_OK) == 0; }

  Result<uint64_t> FileSize(const std::string& path) override {
    struct stat info {};
    if (stat(path.c_str(), &info) != 0) return ErrnoError("reading the size of " + path, errno);
    return static_cast<uint64_t>(info.st_size);
  }

  Result<std::vector<std::string>> ListDir(const std::string& path) override {
    std::error_code error;
    std::vector<std::string> names;
    for (std::filesystem::directory_iterator it(path, error), end; !error && it != end;
         it.increment(error)) {
      names.push_back(it->path().filename().string());
    }
    if (error) return ErrnoError("listing " + path, error.value());
    std::sort(names.begin(), names.end());
    return names;
  }

  Status CreateDirs(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) return ErrnoError("creating the directory " + path, error.value());
    return OkStatus();
  }

  Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) != 0) {
      return ErrnoError("renaming " + from + " to " + to, errno);
    }
    return OkStatus();
  }

  Status SyncDir(const std::string& path) override {
    ScopedFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd.get() < 0) return ErrnoError("opening the directory " + path, errno);
    if (fsync(fd.get()) != 0) return ErrnoError("syncing the directory " + path, errno);
    return OkStatus();
  }

  Status RemoveFile(const std::string& path) override {
    if (unlink(path.c_str()) != 0) return ErrnoError("removing " + path, errno);
    return OkStatus();
  }

  Status RemoveTree(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) return ErrnoError("removing " + path, error.value());
    return OkStatus();
  }

  Result<uint64_t> FreeBytes(const std::string& path) override {
    struct statvfs info {};
    if (statvfs(path.c_str(), &info) != 0) {
      return ErrnoError("reading the free space of " + path, errno);
    }
    return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  }
};

}  // namespace

Env& Env::Posix() {
  static PosixEnv env;
  return env;
}

Result<std::string> ReadFile(Env& env, const std::string& path, uint64_t limit) {
  WEFT_ASSIGN_OR_RETURN(uint64_t size, env.FileSize(path));
  if (size > limit) {
    return ExhaustedError(path + " has " + std::to_string(size) + " bytes; at most " +
                          std::to_string(limit) + " are read here");
  }
  std::string text(size, '\0');
  WEFT_RETURN_IF_ERROR(env.ReadAt(path, 0, std::as_writable_bytes(std::span(text))));
  return text;
}

bool IsFolder(Env& env, const std::string& path) {
  return env.ListDir(path).ok();
}

Status WriteFileAtomic(Env& env, const std::string& path, std::string_view text) {
  static std::atomic<uint64_t> writes{0};  // two threads may write the same path
  std::string temporary = path + ".tmp." + std::to_string(getpid()) + "." +
                          std::to_string(writes.fetch_add(1, std::memory_order_relaxed));
  auto write = [&]() -> Status {
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, env.NewWritableFile(temporary));
    WEFT_RETURN_IF_ERROR(file->Append(text));
    WEFT_RETURN_IF_ERROR(file->Sync());
    WEFT_RETURN_IF_ERROR(file->Close());
    return env.Rename(temporary, path);
  };
  if (Status status = write(); !status.ok()) {
    (void)env.RemoveFile(temporary);
    return status;
  }
  return env.SyncDir(DirName(path));
}

std::string JoinPath(std::string_view base, std::string_view name) {
  std::string path(base);
  if (!path.empty() && path.back() != '/') path += '/';
  path += name;
  return path;
}

std::string DirName(std::string_view path) {
  size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  return std::string(path.substr(0, std::max<size_t>(slash, 1)));
}

std::string BaseName(std::string_view path) {
  size_t slash = path.rfind('/');
  return std::string(slash == std::string_view::npos ? path : path.substr(slash + 1));
}

}  // namespace weft
