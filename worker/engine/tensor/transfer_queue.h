#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "common/status.h"
#include "worker/engine/tensor/copy_stream.h"

namespace weft::engine {

/// What went over one direction of a link since the start.
struct LinkTotals {
  int64_t bytes = 0;
  double busy_seconds = 0;    ///< Something was on the way; not measured on a CUDA device.
  double waited_seconds = 0;  ///< A rank waited for it.
};

/// One direction of the link between device memory and host memory: runs jobs in their order on a
/// thread of its own. On the CPU back end, where both are the memory of the process, a rate can be
/// emulated: whoever moves bytes then is held up for as long as the link would take. To and from a
/// CUDA device copies are enqueued on a stream of the lane's own (CopyStream), which waits for the
/// stream that computes, as that does for it (Await): a job is done, for who calls Await, when it
/// has enqueued its copies, and memory of the device that they use is held until then. Thread-safe.
class TransferQueue {
 public:
  using Job = std::function<Status()>;

  /// `bytes_per_second`; 0: as fast as it goes.
  explicit TransferQueue(int64_t bytes_per_second);
  /// Makes a queue between CUDA device `device` and pinned memory.
  static Result<std::unique_ptr<TransferQueue>> New(int device, LinkDirection direction);
  /// Finishes what is enqueued.
  ~TransferQueue();
  TransferQueue(const TransferQueue&) = delete;
  TransferQueue& operator=(const TransferQueue&) = delete;

  /// Enqueues a job, which may call Copy and Move, and returns its number, counted from 1. On a
  /// device its copies come after what is enqueued on `after` so far.
  int64_t Enqueue(Job job, const Stream& after = {});

  /// Waits for job `number` and all before it, until bytes have arrived. The first failure of a job
  /// is returned by every later call.
  Status WaitFor(int64_t number);
  /// Makes what is enqueued on `stream` from now on come after job `number` and all before it. On a
  /// CPU that is to wait; on a device the host waits only until the copies are enqueued.
  Status Await(const Stream& stream, int64_t number);
  /// The same in a thread for which nobody waits: its time does not count as waited.
  Status WaitUncounted(int64_t number);

  /// Waits for all jobs.
  Status WaitForAll();

  /// Copies bytes over the link; returns when they have arrived, or are enqueued. What a job does
  /// not copy is between Follow and Precede.
  void Copy(void* to, const void* from, size_t bytes);
  /// The same upwards of elements, which become those of `to`'s type. On a device ReserveStaging
  /// was called before elements are converted.
  void Copy(const TensorView& to, const TensorView& from);
  /// Before what is copied up is converted: takes memory of the host memory pool's.
  Status ReserveStaging(Allocator& host);

  /// Where jobs enqueue their copies, to have them wait for something else; of a CPU, where none
  /// are enqueued, that of the caller.
  Stream stream() const { return copies_ != nullptr ? copies_->stream() : Stream(); }
  /// In a job: what it copies from now on comes after job `number` of `other`, which was enqueued
  /// before it.
  Status Follow(TransferQueue& other, int64_t number);

  /// Copies from now on come after what is enqueued on `stream` so far. No job is under way.
  Status Follow(const Stream& stream);
  /// Makes what is enqueued on `stream` from now on come after all copies so far.
  Status Precede(const Stream& stream);

  /// Accounts for bytes that `move` brings over the link.
  Status Move(size_t bytes, const Job& move);

  LinkTotals totals() const;

 private:
  using Clock = std::chrono::steady_clock;

  using Arrival = std::shared_ptr<const kernels::cuda::Event>;

  /// Makes a queue without a thread.
  TransferQueue() : seconds_per_byte_(0) {}
  /// Runs jobs until the end, with this many threads.
  void Run(int threads);
  /// The first failure stays.
  void Note(const Status& status);
  void Count(size_t bytes);
  /// Waits until job `number` has been done; returns when its copies arrive, or none: they have.
  Result<Arrival> Done(int64_t number);
  /// Notes when the copies of job `number`, which has been done, arrive.
  Status MarkArrival(int64_t number);
  void CountWaited(Clock::time_point since);

  const double seconds_per_byte_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  int64_t enqueued_ = 0;
  int64_t finished_ = 0;
  bool ends_ = false;
  Status status_;
  Clock::time_point free_at_;  ///< The link has carried all that was given to it.
  LinkTotals totals_;
  std::unique_ptr<CopyStream> copies_;   ///< Of a lane to or from a device.
  std::map<int64_t, Arrival> arrivals_;  ///< By job, of those that may be on their way.
  std::thread thread_;
};

}  // namespace weft::engine
