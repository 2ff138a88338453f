#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "tests/gpu/host/run_blocks.h"

namespace weft::host_cuda {
namespace {

struct SharedAsked {
  std::mutex mutex;
  std::set<const void*> kernels;
};
SharedAsked& AskedForShared() {
  static SharedAsked asked;
  return asked;
}

// A thread that runs its share of each launch. Lives as long as the process.
class Worker {
 public:
  explicit Worker(uint64_t index) {
    std::thread([this, index] { Loop(index); }).detach();
  }

  void Begin(const Launch& launch, const Order& blocks, uint64_t seed, std::atomic<bool>& stop) {
    std::unique_lock lock(mutex_);
    launch_ = &launch;
    blocks_ = &blocks;
    seed_ = seed;
    stop_ = &stop;
    changed_.notify_all();
  }

  std::string End() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return launch_ == nullptr; });
    return failure_;
  }

 private:
  void Loop(uint64_t index) {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return launch_ != nullptr; });
      failure_ = RunBlocks(*launch_, *blocks_, index, seed_, *stop_);
      launch_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const Launch* launch_ = nullptr;
  const Order* blocks_ = nullptr;
  uint64_t seed_ = 0;
  std::atomic<bool>* stop_ = nullptr;
  std::string failure_;
};

uint64_t NextSeed() {
  static const char* text = std::getenv("WEFT_HOST_CUDA_SEED");
  static uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
  static std::atomic<uint64_t> launches{0};
  return (seed << 32) + launches++;
}

}  // namespace

std::string ToString(const Index3& at) {
  return "(" + std::to_string(at.x) + ", " + std::to_string(at.y) + ", " + std::to_string(at.z) +
         ")";
}

void AskForShared(const void* kernel) {
  const std::lock_guard lock(AskedForShared().mutex);
  AskedForShared().kernels.insert(kernel);
}

bool HasAskedForShared(const void* kernel) {
  const std::lock_guard lock(AskedForShared().mutex);
  return AskedForShared().kernels.contains(kernel);
}

std::string Run(const Launch& launch) {
  if (launch.block.Count() == 0 || launch.block.Count() > kMostThreads || launch.block.z > 64) {
    return "a block of " + ToString(launch.block) + " threads";
  }
  if (launch.grid.Count() == 0 || launch.grid.x > 0x7fffffffu || launch.grid.y > 0xffffu ||
      launch.grid.z > 0xffffu) {
    return "a grid of " + ToString(launch.grid) + " blocks";
  }
  static auto* workers = new Worker[kWorkers]{Worker(0), Worker(1)};
  static auto* busy = new std::mutex;
  const std::lock_guard one_launch(*busy);
  const uint64_t seed = NextSeed();
  const Order blocks(launch.grid.Count(), seed, 0);
  std::atomic<bool> stop{false};
  // One that would have no block is not woken.
  const int needed = blocks.count < kWorkers ? static_cast<int>(blocks.count) : kWorkers;
  for (int i = 0; i < needed; ++i) workers[i].Begin(launch, blocks, seed, stop);
  std::string failure;
  for (int i = 0; i < needed; ++i) {
    const std::string own = workers[i].End();
    if (failure.empty()) failure = own;
  }
  return failure;
}

}  // namespace weft::host_cuda
