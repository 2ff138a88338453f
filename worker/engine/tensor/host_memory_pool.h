#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "common/status.h"
#include "worker/engine/tensor/allocator.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/transfer_queue.h"

namespace weft::engine {

/// How far an update of parameters has come that runs tile by tile, in the order of the parameters,
/// while those that are done already go to the device. Thread-safe.
class UpdateProgress {
 public:
  /// An update begins: no parameter is done. Without one all are.
  void Start();
  /// Parameters below `index` are done.
  void Reach(int64_t index);
  /// The update is over.
  void Finish();
  /// Returns when parameter `index` is done.
  void WaitFor(int64_t index);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t done_ = INT64_MAX;
};

/// Files below the host memory pool, as whoever has them keeps count. Thread-safe.
struct FileTier {
  std::atomic<int64_t> bytes = 0;
  std::atomic<int64_t> moved_bytes = 0;    ///< Read and written since the start.
  std::atomic<double> waited_seconds = 0;  ///< A rank waited for reads and writes.
};

/// The memory of the host as a tier below that of the device, with the link between them: where
/// what is offloaded resides (docs/techniques/offload.md). Outlives all tensors in it.
class HostMemoryPool {
 public:
  struct Options {
    int64_t limit_bytes = 0;            ///< Most that it holds; 0: no limit.
    int64_t link_bytes_per_second = 0;  ///< In each direction, emulated; 0: as fast as it goes.
    std::string directory = {};         ///< Of files below it, or none.
    bool optimizer_in_file = true;      ///< The optimizer keeps its state in one, where they go.
  };
  /// Below `device`: to that of a CPU the link is emulated, below a CUDA device memory is pinned.
  static Result<std::unique_ptr<HostMemoryPool>> New(const Options& options, Device device);

  const std::string& directory() const { return directory_; }
  bool optimizer_in_file() const { return optimizer_in_file_ && !directory_.empty(); }
  Allocator& allocator() { return allocator_; }
  TransferQueue& down() { return *down_; }  ///< From the device.
  TransferQueue& up() { return *up_; }      ///< To the device.
  UpdateProgress& updated() { return updated_; }
  FileTier& files() { return files_; }

  /// A rank waited for the link or for files, since the start.
  double WaitedSeconds() const {
    return down_->totals().waited_seconds + up_->totals().waited_seconds + files_.waited_seconds;
  }

 private:
  HostMemoryPool(const Options& options, std::unique_ptr<MemorySource> memory)
      : directory_(options.directory),
        optimizer_in_file_(options.optimizer_in_file),
        allocator_(std::move(memory), options.limit_bytes) {}

  const std::string directory_;
  const bool optimizer_in_file_;
  Allocator allocator_;
  UpdateProgress updated_;
  std::unique_ptr<TransferQueue> down_;
  std::unique_ptr<TransferQueue> up_;
  FileTier files_;
};

/// `context` for what the host does with its tier: memory of that, computed with by processors.
Context InHostMemoryPool(Context context);

/// Whether `context` is one of those.
bool IsInHostMemoryPool(const Context& context);

}  // namespace weft::engine
