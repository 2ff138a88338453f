#include "worker/engine/tensor/transfer_queue.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <utility>

#include "common/clock.h"
#include "kernels/cpu/parallel.h"
#include "kernels/elementwise/elementwise.h"

namespace weft::engine {
namespace {

// Sleeps shorter than this are left to add up.
constexpr std::chrono::microseconds kShortestSleep(100);

}  // namespace

TransferQueue::TransferQueue(int64_t bytes_per_second)
    : seconds_per_byte_(bytes_per_second > 0 ? 1.0 / static_cast<double>(bytes_per_second) : 0),
      free_at_(Clock::now()),
      // One core is enough for it; the others compute.
      thread_([this] { Run(1); }) {}

Result<std::unique_ptr<TransferQueue>> TransferQueue::New(int device, LinkDirection direction) {
  std::unique_ptr<TransferQueue> lane(new TransferQueue);
  std::promise<Status> opened;
  std::future<Status> open = opened.get_future();
  // Weights are converted while others are updated, which moves five times as many bytes.
  const int threads = std::max(kernels::cpu::Threads() / 4, 1);
  lane->thread_ = std::thread(
      [own = lane.get(), device, direction, threads, opened = std::move(opened)]() mutable {
        auto copies = CopyStream::New(device, direction);
        const Status status = copies.status();
        if (status.ok()) own->copies_ = *std::move(copies);
        opened.set_value(status);
        own->Run(threads);
      });
  WEFT_RETURN_IF_ERROR(open.get());
  return lane;
}

TransferQueue::~TransferQueue() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

int64_t TransferQueue::Enqueue(Job job, const Stream& after) {
  if (copies_ != nullptr && after.cuda != nullptr) {
    auto point = CopyStream::PointOf(after);
    if (!point.ok()) {
      job = [status = point.status()] { return status; };
    } else {
      job = [this, job = std::move(job),
             point = std::make_shared<const kernels::cuda::Event>(*std::move(point))]() -> Status {
        WEFT_RETURN_IF_ERROR(copies_->Follow(*point));
        return job();
      };
    }
  }
  std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  changed_.notify_all();
  return ++enqueued_;
}

Status TransferQueue::WaitFor(int64_t number) {
  const Clock::time_point begin = Clock::now();
  Status status = WaitUncounted(number);
  CountWaited(begin);
  return status;
}

Status TransferQueue::WaitUncounted(int64_t number) {
  WEFT_ASSIGN_OR_RETURN(const Arrival arrival, Done(number));
  if (arrival != nullptr) WEFT_RETURN_IF_ERROR(arrival->Wait());
  std::lock_guard lock(mutex_);
  return status_;
}

Status TransferQueue::Await(const Stream& stream, int64_t number) {
  if (copies_ == nullptr) return WaitFor(number);
  const Clock::time_point begin = Clock::now();
  WEFT_ASSIGN_OR_RETURN(const Arrival arrival, Done(number));
  CountWaited(begin);
  return arrival != nullptr ? arrival->Block(stream) : OkStatus();
}

Result<TransferQueue::Arrival> TransferQueue::Done(int64_t number) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return finished_ >= number; });
  WEFT_RETURN_IF_ERROR(status_);
  const auto found = arrivals_.find(number);
  return found != arrivals_.end() ? found->second : nullptr;
}

void TransferQueue::CountWaited(Clock::time_point since) {
  std::lock_guard lock(mutex_);
  totals_.waited_seconds += SecondsSince(since);
}

Status TransferQueue::WaitForAll() {
  int64_t last = 0;
  {
    std::lock_guard lock(mutex_);
    last = enqueued_;
  }
  return WaitFor(last);
}

void TransferQueue::Note(const Status& status) {
  std::lock_guard lock(mutex_);
  if (status_.ok()) status_ = status;
}

void TransferQueue::Count(size_t bytes) {
  std::lock_guard lock(mutex_);
  totals_.bytes += static_cast<int64_t>(bytes);
}

void TransferQueue::Copy(void* to, const void* from, size_t bytes) {
  if (copies_ != nullptr) {
    Note(copies_->Copy(to, from, bytes));
    return Count(bytes);
  }
  (void)Move(bytes, [&] {
    std::memcpy(to, from, bytes);
    return OkStatus();
  });
}

void TransferQueue::Copy(const TensorView& to, const TensorView& from) {
  if (to.dtype == from.dtype) return Copy(to.data, from.data, from.Bytes());
  if (copies_ == nullptr) {
    return Note(Move(to.Bytes(), [&] { return kernels::Cast(Stream(), {from, to}); }));
  }
  Note(copies_->Convert(to, from));
  Count(to.Bytes());
}

Status TransferQueue::ReserveStaging(Allocator& host) {
  return copies_ != nullptr ? copies_->ReserveStaging(host) : OkStatus();
}

Status TransferQueue::Follow(const Stream& stream) {
  if (copies_ == nullptr) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(const kernels::cuda::Event point, CopyStream::PointOf(stream));
  return copies_->Follow(point);
}

Status TransferQueue::Follow(TransferQueue& other, int64_t number) {
  WEFT_ASSIGN_OR_RETURN(const Arrival arrival, other.Done(number));
  return arrival != nullptr ? copies_->Follow(*arrival) : OkStatus();
}

Status TransferQueue::Precede(const Stream& stream) {
  if (copies_ == nullptr) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(const kernels::cuda::Event point, copies_->Point());
  return point.Block(stream);
}

Status TransferQueue::Move(size_t bytes, const Job& move) {
  const Clock::time_point begin = Clock::now();
  Status status = move();
  const std::chrono::duration<double> on_link(static_cast<double>(bytes) * seconds_per_byte_);
  Clock::time_point arrived;
  {
    std::lock_guard lock(mutex_);
    const Clock::time_point start = std::max(begin, free_at_);
    arrived = std::max(start + std::chrono::duration_cast<Clock::duration>(on_link), Clock::now());
    totals_.bytes += static_cast<int64_t>(bytes);
    totals_.busy_seconds += ToSeconds(arrived - start);
    free_at_ = arrived;
  }
  if (arrived - Clock::now() > kShortestSleep) std::this_thread::sleep_until(arrived);
  return status;
}

LinkTotals TransferQueue::totals() const {
  std::lock_guard lock(mutex_);
  return totals_;
}

Status TransferQueue::MarkArrival(int64_t number) {
  if (copies_ == nullptr) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(kernels::cuda::Event point, copies_->Point());
  std::lock_guard lock(mutex_);
  arrivals_[number] = std::make_shared<const kernels::cuda::Event>(std::move(point));
  while (arrivals_.size() > 1) {
    WEFT_ASSIGN_OR_RETURN(const bool passed, arrivals_.begin()->second->Passed());
    if (!passed) break;
    arrivals_.erase(arrivals_.begin());
  }
  return OkStatus();
}

void TransferQueue::Run(int threads) {
  kernels::cpu::SetThreads(threads);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ends_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    const int64_t number = finished_ + 1;
    lock.unlock();
    Note(job());
    job = nullptr;  // what it holds goes before any caller learns of it
    Note(MarkArrival(number));
    lock.lock();
    finished_ = number;
    changed_.notify_all();
  }
}

}  // namespace weft::engine
