#include "worker/engine/tensor/link_lane.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cpu/parallel.h"

namespace weft::engine {
namespace {

// Sleeps shorter than this are left to add up.
constexpr std::chrono::microseconds kShortestSleep(100);

}  // namespace

LinkLane::LinkLane(int64_t bytes_per_second)
    : seconds_per_byte_(bytes_per_second > 0 ? 1.0 / static_cast<double>(bytes_per_second) : 0),
      free_at_(Clock::now()),
      thread_([this] { Run(); }) {}

LinkLane::~LinkLane() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

int64_t LinkLane::Enqueue(Job job) {
  std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  changed_.notify_all();
  return ++enqueued_;
}

Status LinkLane::WaitFor(int64_t number) {
  const Clock::time_point begin = Clock::now();
  Status status = WaitUncounted(number);
  std::lock_guard lock(mutex_);
  totals_.waited_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  return status;
}

Status LinkLane::WaitUncounted(int64_t number) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return finished_ >= number; });
  return status_;
}

Status LinkLane::WaitForAll() {
  int64_t last = 0;
  {
    std::lock_guard lock(mutex_);
    last = enqueued_;
  }
  return WaitFor(last);
}

void LinkLane::Copy(void* to, const void* from, size_t bytes) {
  (void)Move(bytes, [&] {
    std::memcpy(to, from, bytes);
    return OkStatus();
  });
}

Status LinkLane::Move(size_t bytes, const Job& move) {
  const Clock::time_point begin = Clock::now();
  Status status = move();
  const std::chrono::duration<double> on_link(static_cast<double>(bytes) * seconds_per_byte_);
  Clock::time_point arrived;
  {
    std::lock_guard lock(mutex_);
    const Clock::time_point start = std::max(begin, free_at_);
    arrived = std::max(start + std::chrono::duration_cast<Clock::duration>(on_link), Clock::now());
    totals_.bytes += static_cast<int64_t>(bytes);
    totals_.busy_seconds += std::chrono::duration<double>(arrived - start).count();
    free_at_ = arrived;
  }
  if (arrived - Clock::now() > kShortestSleep) std::this_thread::sleep_until(arrived);
  return status;
}

LinkTotals LinkLane::totals() const {
  std::lock_guard lock(mutex_);
  return totals_;
}

// One core is enough for it; the others compute.
void LinkLane::Run() {
  kernels::cpu::SetThreads(1);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ends_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    const Status status = job();
    job = nullptr;  // what it holds goes before anybody is told
    lock.lock();
    if (status_.ok()) status_ = status;
    ++finished_;
    changed_.notify_all();
  }
}

}  // namespace weft::engine
