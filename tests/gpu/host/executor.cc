// Compiled without ThreadSanitizer (CMakeLists.txt), which shall see what kernels do to memory and
// not how their fibers are run. For the same reason nothing here calls memcpy or memset on memory
// of the kernels, except their own asynchronous copies.

#include "tests/gpu/host/run_blocks.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <boost/context/fiber.hpp>
#include <boost/context/preallocated.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>

#include "common/check.h"
#include "common/number.h"
#include "common/rng.h"
#include "tests/gpu/host/fiber_switch.h"
#include "tests/gpu/host/hopper.h"

// NOLINTBEGIN(readability-identifier-naming): the names are CUDA's.
constinit thread_local weft::host_cuda::Index3 threadIdx;
constinit thread_local weft::host_cuda::Index3 blockIdx;
constinit thread_local weft::host_cuda::Index3 blockDim;
constinit thread_local weft::host_cuda::Index3 gridDim;
// NOLINTEND(readability-identifier-naming)

namespace weft::host_cuda {
namespace {

namespace ctx = boost::context;

constexpr size_t kStackBytes = size_t{256} << 10;
constexpr size_t kStackShift = 5 * 64;  // An odd number of cache lines.
constexpr size_t kRegionBytes = size_t{64} << 20;
constexpr size_t kMostStaticShared = size_t{48} << 10;  // And all that comes without asking.
constexpr size_t kGap = 128;                            // Between shared variables, poisoned.
constexpr int kMostVariables = 32;
constexpr int kNamedBarriers = 16;

// Unwinds a thread whose launch has failed.
struct Cancelled {};

Index3 Unflatten(uint64_t rank, const Index3& sizes) {
  return {static_cast<uint32_t>(rank % sizes.x), static_cast<uint32_t>(rank / sizes.x % sizes.y),
          static_cast<uint32_t>(rank / sizes.x / sizes.y)};
}

std::string ToString(Site site) {
  return std::string(site.file) + ":" + std::to_string(site.line);
}

void Fill(void* memory, size_t bytes) {
  auto* at = static_cast<volatile uint8_t*>(memory);
  for (size_t i = 0; i < bytes; ++i) at[i] = 0xff;
}

struct PendingCopy {
  void* to;
  const void* from;
  size_t bytes;
  int group;
};

enum class State { kReady, kWaiting, kDone };

// One thread of a block: a fiber that outlives blocks and launches.
struct Slot {
  ctx::fiber fiber;
  ctx::fiber scheduler;
  void* stack_bottom = nullptr;
  size_t stack_bytes = 0;
  void* tsan = nullptr;
  void* fake_stack = nullptr;
  State state = State::kDone;
  uint32_t rank = 0;
  Index3 thread;
  const void* waits_on = nullptr;
  const char* waits_at = "";
  Site site{"", 0};
  uint32_t warp_syncs = 0;
  int open_group = 0;
  std::vector<PendingCopy> copies;
};

struct Barrier {
  int arrived = 0;
  int wanted = 0;
  int count = 0;
  uint32_t generation = 0;
  Votes results[2];
  Site site{"", 0};
  uint32_t first_rank = 0;
  char sync[2] = {};  // Addresses for ThreadSanitizer, used in turn.
};

struct Warp {
  WarpWords words;
  uint32_t arrived = 0;  // Mask of lanes.
  uint32_t mask[kWarpSize];
  WarpOperation operation[kWarpSize];
  char sync[2] = {};
};

struct SharedSlot {
  const void* tag;
  void* memory;
};

// Runs blocks, one at a time, on the operating system thread that made it.
class BlockRunner {
 public:
  BlockRunner() : slots_(std::make_unique<Slot[]>(kMostThreads)), tsan_(TsanCurrent()) {
    // Not by mmap(), which ThreadSanitizer would take for a write.
    const long region = syscall(SYS_mmap, nullptr, kRegionBytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    WEFT_CHECK(region != -1, "no memory for shared variables");
    region_ = reinterpret_cast<uint8_t*>(region);  // NOLINT(performance-no-int-to-ptr)
    AsanPoison(region_, kRegionBytes);
  }

  // Runs the blocks whose place in `blocks` is `worker` modulo kWorkers.
  void RunBlocks(const Launch& launch, const Order& blocks, uint64_t worker, uint64_t seed,
                 std::atomic<bool>& stop) {
    launch_ = &launch;
    threads_ = static_cast<uint32_t>(launch.block.Count());
    seed_ = seed;
    failure_.clear();
    blockDim = launch.block;
    gridDim = launch.grid;
    TsanRelease(&start_);
    for (uint64_t place = worker; place < blocks.count && !stop; place += kWorkers) {
      RunBlock(Unflatten(blocks[place], launch.grid), place);
      if (!failure_.empty()) stop = true;
    }
    TsanAcquire(&end_);
    used_ = 0;
  }

  const std::string& failure() const { return failure_; }

  // These concern the running thread.

  [[noreturn]] void Fail(const std::string& problem) {
    Record("thread " + ToString(threadIdx) + " " + problem);
    throw Cancelled{};
  }

  uint32_t Rank() const { return running_->rank; }

  Votes Sync(Barrier& barrier, int wanted, bool predicate, const char* what, Site site,
             bool waits = true) {
    if (barrier.arrived == 0) {
      barrier.site = site;
      barrier.first_rank = Rank();
      barrier.wanted = wanted;
      barrier.count = 0;
    } else if (barrier.wanted != wanted || (what == kSyncThreads && !(barrier.site == site))) {
      Fail(std::string("is at ") + what + " " + ToString(site) + " while thread " +
           ToString(Unflatten(barrier.first_rank, launch_->block)) + " is at " +
           ToString(barrier.site));
    }
    const uint32_t parity = barrier.generation % 2;
    ++barrier.arrived;
    if (predicate) ++barrier.count;
    TsanRelease(&barrier.sync[parity]);
    if (barrier.arrived == wanted) {
      barrier.results[parity] = {barrier.count, wanted};
      barrier.arrived = 0;
      ++barrier.generation;
      Wake(&barrier);
    } else if (waits) {
      Wait(&barrier, what, site);
    }
    if (!waits) return {};
    TsanAcquire(&barrier.sync[parity]);
    return barrier.results[parity];
  }

  Votes SyncBlock(bool predicate, Site site) {
    return Sync(barriers_[0], static_cast<int>(threads_), predicate, kSyncThreads, site);
  }

  void SyncNamed(int id, int threads, bool waits, Site site) {
    if (id < 1 || id >= kNamedBarriers) Fail("syncs at barrier " + std::to_string(id));
    if (threads % kWarpSize != 0) Fail("syncs part of a warp at a named barrier");
    Sync(barriers_[id], threads, false, "a named barrier", site, waits);
  }

  void Wake(const void* on) {
    for (uint32_t t = 0; t < threads_; ++t) {
      Slot& slot = SlotOf(t);
      if (slot.state == State::kWaiting && slot.waits_on == on) slot.state = State::kReady;
    }
  }

  void Wait(const void* on, const char* what, Site site) {
    Slot& slot = *running_;
    slot.state = State::kWaiting;
    slot.waits_on = on;
    slot.waits_at = what;
    slot.site = site;
    Yield(slot);
    if (cancelled_) throw Cancelled{};
  }

  Hopper& hopper() { return hopper_; }

  void WithWarp(uint32_t mask, WarpOperation operation, const uint32_t* in, int in_words,
                uint32_t* out, int out_words, Site site) {
    Warp& warp = warps_[Rank() / kWarpSize];
    const uint32_t lane = Rank() % kWarpSize;
    if ((mask >> lane & 1u) == 0) Fail("is not in the mask of its own call at " + ToString(site));
    if (Rank() / kWarpSize == threads_ / kWarpSize && threads_ % kWarpSize != 0 &&
        mask >> (threads_ % kWarpSize) != 0) {
      Fail("names lanes that the block does not have at " + ToString(site));
    }
    // Each against one that came before it, and all once all are there.
    const auto check = [&](uint32_t other) {
      if (warp.mask[other] == mask && warp.operation[other] == operation) return;
      Fail("calls at " + ToString(site) + " for another operation, or other lanes, than lane " +
           std::to_string(other) + " of its warp");
    };
    if (const uint32_t before = warp.arrived & mask; before != 0) {
      check(static_cast<uint32_t>(std::countr_zero(before)));
    }
    warp.arrived |= 1u << lane;
    warp.mask[lane] = mask;
    warp.operation[lane] = operation;
    for (int i = 0; i < in_words; ++i) warp.words.in[lane][i] = in[i];
    if ((warp.arrived & mask) == mask) {
      warp.words.lanes = mask;
      const uint32_t first = Rank() - lane;
      for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const auto other = static_cast<uint32_t>(std::countr_zero(rest));
        check(other);
        SlotOf(first + other).state = State::kReady;
      }
      if (operation != nullptr) operation(warp.words);
      warp.arrived &= ~mask;
    } else {
      Wait(&warp, operation == nullptr ? "__syncwarp" : "a warp's common operation", site);
    }
    for (int i = 0; i < out_words; ++i) out[i] = warp.words.out[lane][i];
  }

  void SyncWarp(uint32_t mask, Site site) {
    char* sync = &warps_[Rank() / kWarpSize].sync[running_->warp_syncs++ % 2];
    TsanRelease(sync);
    WithWarp(mask, nullptr, nullptr, 0, nullptr, 0, site);
    TsanAcquire(sync);
  }

  void* Variable(const void* tag, size_t bytes, size_t alignment) {
    for (int i = 0; i < variables_; ++i) {
      if (variable_[i].tag == tag) return variable_[i].memory;
    }
    static_shared_ += bytes;
    if (variables_ == kMostVariables || static_shared_ > kMostStaticShared) {
      Fail("asks for too many or too large shared variables");
    }
    if (!launch_->asked_for_shared &&
        static_shared_ + launch_->dynamic_shared_bytes > kMostStaticShared) {
      Fail("has more shared memory than comes without asking");
    }
    if (alignment > kGap) Fail("asks for a shared variable of too wide an alignment");
    variable_[variables_++] = {tag, TakeShared(bytes)};
    return variable_[variables_ - 1].memory;
  }

  void* DynamicShared() const { return dynamic_shared_; }

  void CopyLater(void* to, const void* from, size_t bytes) {
    running_->copies.push_back({to, from, bytes, running_->open_group});
  }

  void CommitCopies() { ++running_->open_group; }

  void WaitForCopies(int groups) {
    std::vector<PendingCopy> rest;
    for (const PendingCopy& copy : running_->copies) {
      if (copy.group < running_->open_group - groups) {
        VisibleCopy(copy.to, copy.from, copy.bytes);
      } else {
        rest.push_back(copy);
      }
    }
    running_->copies = std::move(rest);
  }

 private:
  static constexpr const char* kSyncThreads = "__syncthreads";

  // Slots turn from block to block, so that ThreadSanitizer does not take the same thread of
  // different blocks for one thread, which could not race with itself.
  Slot& SlotOf(uint32_t rank) {
    const uint32_t at = rank + turn_;
    return slots_[at < threads_ ? at : at - threads_];
  }

  void Record(const std::string& problem) {
    if (failure_.empty()) failure_ = "block " + ToString(blockIdx) + ": " + problem;
    cancelled_ = true;
  }

  void RunBlock(const Index3& block, uint64_t place) {
    const size_t least = launch_->dynamic_shared_bytes + 2 * kMostStaticShared;
    // Fresh memory for each block where that can tell races between blocks from reuse.
    if (!kTsan || used_ + least > kRegionBytes) {
      TsanAcquire(&end_);
      TsanRelease(&start_);
      used_ = 0;
    }
    blockIdx = block;
    turn_ = static_cast<uint32_t>(place / kWorkers % threads_);
    cancelled_ = false;
    variables_ = 0;
    static_shared_ = 0;
    const size_t before = used_;
    dynamic_shared_ = TakeShared(launch_->dynamic_shared_bytes);
    hopper_.Begin(threads_, static_cast<unsigned char*>(dynamic_shared_),
                  launch_->dynamic_shared_bytes);
    for (Barrier& barrier : barriers_) barrier.arrived = 0;
    for (uint32_t w = 0; w * kWarpSize < threads_; ++w) {
      warps_[w].arrived = 0;
    }
    for (uint32_t t = 0; t < threads_; ++t) {
      Slot& slot = SlotOf(t);
      if (slot.stack_bottom == nullptr) Start(slot);
      slot.rank = t;
      slot.thread = Unflatten(t, launch_->block);
      slot.state = State::kReady;
    }
    bool moved = true;
    for (uint64_t pass = 0; moved; ++pass) {
      moved = false;
      const Order order(threads_, seed_, (place << 20) + pass);
      uint64_t at = order.first;
      for (uint32_t i = 0; i < threads_; ++i, at = order.Next(at)) {
        Slot& slot = SlotOf(static_cast<uint32_t>(at));
        if (slot.state != State::kReady) continue;
        Resume(slot);
        moved = true;
      }
      if (moved) continue;
      moved = CancelWaiting();
    }
    if (const std::string problem = hopper_.End(); !cancelled_ && !problem.empty()) {
      Record(problem);
    }
    AsanPoison(region_ + before, used_ - before);
  }

  // When some threads wait and none can go on, says so and sets them free to unwind.
  bool CancelWaiting() {
    const Slot* waiting = nullptr;
    const Slot* other = nullptr;
    for (uint32_t t = 0; t < threads_; ++t) {
      const Slot& slot = SlotOf(t);
      if (slot.state == State::kWaiting && waiting == nullptr) waiting = &slot;
    }
    if (waiting == nullptr) return false;
    for (uint32_t t = 0; t < threads_; ++t) {
      const Slot& slot = SlotOf(t);
      if (slot.state == State::kDone || slot.waits_on != waiting->waits_on) {
        other = &slot;
        if (slot.rank / kWarpSize == waiting->rank / kWarpSize) break;
      }
    }
    std::string problem = "thread " + ToString(Unflatten(waiting->rank, launch_->block)) +
                          " waits at " + waiting->waits_at + " (" + ToString(waiting->site) + ")";
    if (other != nullptr) {
      problem += " while thread " + ToString(Unflatten(other->rank, launch_->block));
      problem += other->state == State::kDone ? " has left the kernel"
                                              : std::string(" waits at ") + other->waits_at + " (" +
                                                    ToString(other->site) + ")";
    }
    Record(problem);
    for (uint32_t t = 0; t < threads_; ++t) {
      if (SlotOf(t).state == State::kWaiting) SlotOf(t).state = State::kReady;
    }
    return true;
  }

  void* TakeShared(size_t bytes) {
    uint8_t* memory = region_ + used_;
    AsanUnpoison(memory, bytes);
    Fill(memory, bytes);
    used_ += RoundUp(bytes, kGap) + kGap;
    return memory;
  }

  void Start(Slot& slot) {
    ctx::protected_fixedsize_stack stacks(kStackBytes);
    const ctx::stack_context stack = stacks.allocate();
    // Stacks are whole pages apart: with their tops at the same place in a page they would share a
    // few lines of the caches between them.
    const size_t unused = static_cast<size_t>(&slot - slots_.get()) * kStackShift % 4096;
    void* const top = static_cast<uint8_t*>(stack.sp) - unused;
    slot.stack_bytes = stack.size - unused;
    slot.stack_bottom = static_cast<uint8_t*>(top) - slot.stack_bytes;
    slot.tsan = TsanCreate();
    slot.fiber = ctx::fiber(std::allocator_arg, ctx::preallocated(top, slot.stack_bytes, stack),
                            stacks, [this, &slot](ctx::fiber&& scheduler) {
                              AsanFinishSwitch(nullptr, &scheduler_bottom_, &scheduler_size_);
                              slot.scheduler = std::move(scheduler);
                              while (true) RunThread(slot);
                              return ctx::fiber();
                            });
  }

  // On the slot's fiber: a thread from its start to its end.
  void RunThread(Slot& slot) {
    TsanAcquire(&start_);
    slot.copies.clear();
    slot.open_group = 0;
    slot.warp_syncs = 0;
    try {
      if (!cancelled_) {
        launch_->body();
        if (!slot.copies.empty()) Fail("ends with an asynchronous copy that it never waited for");
      }
    } catch (const Cancelled&) {
    }
    slot.state = State::kDone;
    TsanRelease(&end_);
    Yield(slot);
  }

  void Resume(Slot& slot) {
    running_ = &slot;
    threadIdx = slot.thread;
    void* fake_stack = nullptr;
    TsanSwitch(slot.tsan);
    AsanStartSwitch(&fake_stack, slot.stack_bottom, slot.stack_bytes);
    slot.fiber = std::move(slot.fiber).resume();
    AsanFinishSwitch(fake_stack, nullptr, nullptr);
  }

  void Yield(Slot& slot) {
    TsanSwitch(tsan_);
    AsanStartSwitch(&slot.fake_stack, scheduler_bottom_, scheduler_size_);
    slot.scheduler = std::move(slot.scheduler).resume();
    AsanFinishSwitch(slot.fake_stack, &scheduler_bottom_, &scheduler_size_);
  }

  std::unique_ptr<Slot[]> slots_;
  Hopper hopper_;
  void* tsan_;
  uint8_t* region_ = nullptr;
  size_t used_ = 0;
  const void* scheduler_bottom_ = nullptr;
  size_t scheduler_size_ = 0;
  char start_ = 0;  // Addresses for ThreadSanitizer.
  char end_ = 0;

  const Launch* launch_ = nullptr;
  uint32_t threads_ = 0;
  uint64_t seed_ = 0;
  uint32_t turn_ = 0;
  bool cancelled_ = false;
  std::string failure_;
  Slot* running_ = nullptr;
  Barrier barriers_[kNamedBarriers];
  Warp warps_[kMostThreads / kWarpSize];
  SharedSlot variable_[kMostVariables];
  int variables_ = 0;
  size_t static_shared_ = 0;
  void* dynamic_shared_ = nullptr;
};

thread_local BlockRunner* runner = nullptr;

}  // namespace

void VisibleCopy(void* to, const void* from, size_t bytes) {
  static void* (*volatile copy)(void*, const void*, size_t) = std::memcpy;
  static void* (*volatile set)(void*, int, size_t) = std::memset;
  if (from != nullptr) {
    copy(to, from, bytes);
  } else {
    set(to, 0, bytes);
  }
}

std::string RunBlocks(const Launch& launch, const Order& blocks, uint64_t worker, uint64_t seed,
                      std::atomic<bool>& stop) {
  if (runner == nullptr) runner = new BlockRunner;
  runner->RunBlocks(launch, blocks, worker, seed, stop);
  return runner->failure();
}

void Fail(const std::string& problem) {
  runner->Fail(problem);
}
Votes SyncThreads(bool predicate, Site site) {
  return runner->SyncBlock(predicate, site);
}
void SyncNamed(int id, int threads, Site site) {
  runner->SyncNamed(id, threads, true, site);
}
void ArriveNamed(int id, int threads, Site site) {
  runner->SyncNamed(id, threads, false, site);
}
void Sleep(const void* on, const char* what, Site site) {
  runner->Wait(on, what, site);
}
void Wake(const void* on) {
  runner->Wake(on);
}
Hopper& CurrentHopper() {
  return runner->hopper();
}
void SyncWarp(uint32_t mask, Site site) {
  runner->SyncWarp(mask, site);
}
void WithWarp(uint32_t mask, WarpOperation operation, const uint32_t* in, int in_words,
              uint32_t* out, int out_words, Site site) {
  runner->WithWarp(mask, operation, in, in_words, out, out_words, site);
}
uint32_t ThreadRank() {
  return runner->Rank();
}
uint32_t Lane() {
  return runner->Rank() % kWarpSize;
}
void* SharedVariable(const void* tag, size_t bytes, size_t alignment) {
  return runner->Variable(tag, bytes, alignment);
}
void* DynamicShared() {
  return runner->DynamicShared();
}
void CopyLater(void* to, const void* from, size_t bytes) {
  runner->CopyLater(to, from, bytes);
}
void CommitCopies() {
  runner->CommitCopies();
}
void WaitForCopies(int groups) {
  runner->WaitForCopies(groups);
}

}  // namespace weft::host_cuda
