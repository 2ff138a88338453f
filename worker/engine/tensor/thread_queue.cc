#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "worker/engine/tensor/async_file.h"

namespace weft::engine {
namespace {

constexpr int kThreads = 2;

class ThreadQueue final : public IoQueue {
 public:
  ThreadQueue(int file, std::string path) : file_(file), path_(std::move(path)) {
    for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { Run(); });
  }
  // Finishes what was started: its memory goes next.
  ~ThreadQueue() override {
    {
      std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  std::string_view name() const override { return "threads"; }

  Result<int64_t> Start(bool write, void* memory, size_t bytes, uint64_t offset) override {
    std::lock_guard lock(mutex_);
    queued_.push_back({++started_, write, static_cast<char*>(memory), bytes, offset});
    changed_.notify_all();
    return started_;
  }

  Status Wait(int64_t number) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_.contains(number); });
    Status status = std::move(done_.at(number));
    done_.erase(number);
    return status;
  }

 private:
  struct Operation {
    int64_t number;
    bool write;
    char* memory;
    size_t left;
    uint64_t offset;
  };

  Status Do(Operation o) const {
    while (o.left > 0) {
      const ssize_t moved = o.write ? pwrite(file_, o.memory, o.left, static_cast<off_t>(o.offset))
                                    : pread(file_, o.memory, o.left, static_cast<off_t>(o.offset));
      if (moved < 0 && errno == EINTR) continue;
      if (moved <= 0) return IoError(o.write, path_, o.offset, moved < 0 ? errno : 0);
      o.memory += moved;
      o.offset += static_cast<uint64_t>(moved);
      o.left -= static_cast<size_t>(moved);
    }
    return OkStatus();
  }

  void Run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ends_ || !queued_.empty(); });
      if (queued_.empty()) return;
      const Operation operation = queued_.front();
      queued_.pop_front();
      lock.unlock();
      const Status status = Do(operation);
      lock.lock();
      done_.emplace(operation.number, status);
      changed_.notify_all();
    }
  }

  const int file_;
  const std::string path_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> queued_;
  std::map<int64_t, Status> done_;
  int64_t started_ = 0;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

Result<std::unique_ptr<IoQueue>> NewThreadQueue(int file, const std::string& path) {
  return std::unique_ptr<IoQueue>(std::make_unique<ThreadQueue>(file, path));
}

}  // namespace weft::engine
