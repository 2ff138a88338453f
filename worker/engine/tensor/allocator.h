#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "common/spec/plan.h"
#include "common/status.h"
#include "worker/engine/tensor/memory_source.h"

namespace weft::engine {

/// The purpose of memory; the names of MemoryBreakdown.
enum class Component : uint8_t {
  kParameters,
  kGradients,
  kOptimizer,
  kActivations,
  kWorkspace,
  kCommunication,
};
inline constexpr int kComponents = 6;

/// "parameters", "gradients", ...
std::string_view ComponentName(Component component);

class Allocator;

struct MemoryPiece {
  std::byte* at = nullptr;
  size_t bytes = 0;
};

/// A piece of memory, shared by reference counting; the last reference gives it back.
class BlockRef {
 public:
  BlockRef() = default;
  BlockRef(const BlockRef& other) : block_(other.block_) { Retain(); }
  BlockRef(BlockRef&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  BlockRef& operator=(BlockRef other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~BlockRef() { Release(); }

  void* data() const { return block_ == nullptr ? nullptr : block_->data; }
  /// No other reference exists, so the holder may overwrite the content.
  bool unique() const { return block_ != nullptr && block_->references.load() == 1; }

 private:
  friend class Allocator;
  struct Block {
    void* data = nullptr;
    size_t bytes = 0;
    size_t asked = 0;  ///< Of them, counted: a block that serves again may be larger.
    Component component = Component::kWorkspace;
    Allocator* owner = nullptr;
    std::atomic<int> references{0};
  };
  explicit BlockRef(Block* block) : block_(block) { Retain(); }
  void Retain() {
    if (block_ != nullptr) block_->references.fetch_add(1);
  }
  void Release();

  Block* block_ = nullptr;
};

/// Memory of one rank, of the process or of its device. Counts live and peak bytes by component,
/// refuses what goes past the limit, and keeps freed blocks for the next request of about their
/// size, so that training steps after the first take nothing from the system. A block goes back as
/// soon as nobody refers to it, though work that reads it may still be enqueued on a device: all
/// blocks of an Allocator are used on one stream. Thread-safe. Outlives its blocks.
class Allocator {
 public:
  static constexpr size_t kAlignment = 64;

  /// Holds at most `limit_bytes` from the system; 0: no limit.
  explicit Allocator(int64_t limit_bytes = 0)
      : Allocator(std::make_unique<HostMemory>(), limit_bytes) {}
  Allocator(std::unique_ptr<MemorySource> source, int64_t limit_bytes)
      : source_(std::move(source)), limit_bytes_(limit_bytes) {}
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  /// Allocates at least `bytes`, aligned to kAlignment, content undefined. kExhausted names the
  /// component, the size and what the limit is taken up by.
  Result<BlockRef> Allocate(Component component, size_t bytes);

  /// Counts memory that a library holds (negative: no longer holds) as if it were allocated here.
  Status CountExternal(Component component, int64_t bytes);

  int64_t live_bytes(Component component) const;
  int64_t peak_bytes(Component component) const;

  /// Peak of each component since the last ResetPeaks. Peaks need not fall together.
  MemoryBreakdown Peaks() const;
  void ResetPeaks();

  /// Peak of each component since the last call of this, whatever ResetPeaks does.
  MemoryBreakdown TakeRecentPeaks();

  /// Counts `peaks`, of work that uses memory without asking for it again.
  void RaisePeaks(const MemoryBreakdown& peaks);

  /// Notes the memory of all blocks from now on.
  void StartNoting();
  /// Ends that: what was noted, in few pieces.
  std::vector<MemoryPiece> TakeNoted();
  /// Whether nobody holds anything of `pieces` and the next Allocate may give it.
  bool AreFree(const std::vector<MemoryPiece>& pieces) const;

  /// What each component holds now.
  MemoryBreakdown Live() const;

  /// Bytes held from the system now: live, external and cached.
  int64_t held_bytes() const;

  /// Requests that had to go to the system since the start.
  int64_t system_allocations() const;

 private:
  friend class BlockRef;
  using Block = BlockRef::Block;

  void Return(Block* block);
  Block* TakeCached(size_t bytes);
  void* TakeNew(size_t bytes);
  void DropCached(int64_t until_bytes_held);
  void Count(Component component, int64_t bytes);
  Status OverLimit(Component component, int64_t bytes) const;

  int64_t HeldBytes() const { return source_->held_bytes() + external_bytes_; }
  /// Most bytes that the source may hold; 0: no limit.
  int64_t LimitOfSource() const;

  const std::unique_ptr<MemorySource> source_;
  const int64_t limit_bytes_;
  mutable std::mutex mutex_;
  std::array<int64_t, kComponents> live_{};
  std::array<int64_t, kComponents> peak_{};
  std::array<int64_t, kComponents> recent_peak_{};
  int64_t external_bytes_ = 0;
  bool noting_ = false;
  std::vector<MemoryPiece> noted_;
  std::multimap<size_t, Block*> cached_;  ///< By size.
};

/// Memory held by a library, counted in an Allocator for as long as this lives.
class ExternalBytes {
 public:
  ExternalBytes() = default;
  ExternalBytes(ExternalBytes&& other) noexcept { *this = std::move(other); }
  ExternalBytes& operator=(ExternalBytes&& other) noexcept {
    std::swap(allocator_, other.allocator_);
    std::swap(component_, other.component_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~ExternalBytes();

  /// Counts `bytes` from now on instead of what was counted.
  Status Set(Allocator* allocator, Component component, int64_t bytes);

 private:
  Allocator* allocator_ = nullptr;
  Component component_ = Component::kWorkspace;
  int64_t bytes_ = 0;
};

}  // namespace weft::engine
