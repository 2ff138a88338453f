#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "common/status.h"

namespace weft::engine {

/// Reads and writes of one file that run while others compute. Not thread-safe.
class IoQueue {
 public:
  virtual ~IoQueue() = default;

  /// "io_uring" or "threads".
  virtual std::string_view name() const = 0;

  /// Starts to read or write all of these bytes and returns a number for Wait. The memory stays as
  /// it is until then.
  virtual Result<int64_t> Start(bool write, void* memory, size_t bytes, uint64_t offset) = 0;

  /// Waits for one that was started, once. kUnavailable with what the system says when it failed,
  /// kExhausted when the disk is full, kCorrupt when the file ends too early.
  virtual Status Wait(int64_t number) = 0;
};

/// A queue on an open file. `path` is for messages. kUnavailable where the kernel, or whoever
/// confines this process, has none.
Result<std::unique_ptr<IoQueue>> NewUringQueue(int file, const std::string& path);
Result<std::unique_ptr<IoQueue>> NewThreadQueue(int file, const std::string& path);

/// The error of an I/O call on `path` that failed with `error` (errno), or that reached the end of
/// the file (0).
Status IoError(bool write, const std::string& path, uint64_t offset, int error);

/// A scratch file of fixed size without a name, which goes with the process at the latest: nothing
/// in it is durable, so it is none of Env's. It is read and written around the page cache where the
/// file system allows.
class AsyncFile {
 public:
  /// Memory, offsets and sizes are multiples of this.
  static constexpr size_t kAlignment = 4096;

  enum class Queue : uint8_t { kBest, kThreads };

  /// Makes a file in `directory` with room for `bytes`. kExhausted when the disk has not as
  /// much. The log says which way of I/O there is.
  static Result<std::unique_ptr<AsyncFile>> Create(const std::string& directory, int64_t bytes,
                                                   Queue queue = Queue::kBest);
  ~AsyncFile();
  AsyncFile(const AsyncFile&) = delete;
  AsyncFile& operator=(const AsyncFile&) = delete;

  /// For who starts and waits in one thread.
  IoQueue& queue() { return *queue_; }
  /// Another one, for another thread.
  Result<std::unique_ptr<IoQueue>> NewQueue(Queue queue) const;
  /// What messages call it.
  const std::string& path() const { return path_; }
  int descriptor() const { return file_; }

 private:
  AsyncFile(std::string path, int file) : path_(std::move(path)), file_(file) {}

  std::string path_;
  int file_;
  std::unique_ptr<IoQueue> queue_;
};

}  // namespace weft::engine
