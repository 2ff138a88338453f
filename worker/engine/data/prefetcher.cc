#include "worker/engine/data/prefetcher.h"

#include <algorithm>
#include <utility>

#include "common/memory_errors.h"

namespace weft::engine {

Prefetcher::Prefetcher(std::unique_ptr<BatchSource> source, RangesOfStep ranges)
    : source_(std::move(source)), ranges_(std::move(ranges)), thread_([this] { Work(); }) {}

Prefetcher::~Prefetcher() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Prefetcher::Request Prefetcher::Next(const Request& request) const {
  const std::vector<SequenceRange> ranges = ranges_(request.step);
  auto it = std::find(ranges.begin(), ranges.end(), request.range);
  if (it != ranges.end()) ++it;
  if (it != ranges.end()) return {request.step, *it};
  return {request.step + 1, ranges_(request.step + 1).front()};
}

Result<Batch> Prefetcher::Get(int64_t step, int64_t first_sequence, int64_t count) {
  const Request request{step, {first_sequence, count}};
  std::optional<Result<Batch>> batch;
  {
    std::unique_lock lock(mutex_);
    // The thread uses the source while it prepares, so even an unexpected request waits for it.
    changed_.wait(lock, [&] { return !wanted_ || ready_; });
    if (wanted_ == request) batch = std::move(ready_);
    wanted_.reset();
    ready_.reset();
  }
  if (!batch) batch = source_->Get(step, first_sequence, count);
  {
    std::lock_guard lock(mutex_);
    wanted_ = Next(request);
  }
  changed_.notify_all();
  return *std::move(batch);
}

void Prefetcher::Work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || (wanted_ && !ready_); });
    if (stop_) return;
    const Request request = *wanted_;
    lock.unlock();
    Result<Batch> batch = CatchExhaustion("preparing a batch", [&] {
      return source_->Get(request.step, request.range.first, request.range.count);
    });
    lock.lock();
    ready_ = std::move(batch);
    changed_.notify_all();
  }
}

}  // namespace weft::engine
