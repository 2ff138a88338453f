#include "worker/engine/tensor/allocator.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "common/number.h"
#include "kernels/cpu/aligned_memory.h"

namespace weft::engine {
namespace {

/// The size of the block that an allocation of `bytes` gets.
size_t BlockSize(size_t bytes) {
  constexpr size_t kSmall = 256;
  const size_t grain = bytes >= kernels::cpu::kHugePageBytes ? size_t{64} << 10 : kSmall;
  return RoundUp(std::max<size_t>(bytes, 1), grain);
}

/// By component.
MemoryBreakdown Breakdown(const std::array<int64_t, kComponents>& bytes) {
  const auto of = [&](Component component) { return bytes[static_cast<size_t>(component)]; };
  return {of(Component::kParameters),
          of(Component::kGradients),
          of(Component::kOptimizer),
          of(Component::kActivations),
          of(Component::kWorkspace),
          of(Component::kCommunication),
          0};
}

}  // namespace

std::string_view ComponentName(Component component) {
  constexpr std::array<std::string_view, kComponents> kNames = {
      "parameters", "gradients", "optimizer", "activations", "workspace", "communication"};
  return kNames[static_cast<size_t>(component)];
}

void BlockRef::Release() {
  if (block_ != nullptr && block_->references.fetch_sub(1) == 1) block_->owner->Return(block_);
}

Allocator::~Allocator() {
  DropCached(0);
  WEFT_CHECK(std::all_of(live_.begin(), live_.end(), [](int64_t bytes) { return bytes == 0; }),
             "tensors outlive their allocator");
}

ExternalBytes::~ExternalBytes() {
  // Counting less never fails.
  if (allocator_ != nullptr) (void)allocator_->CountExternal(component_, -bytes_);
}

Status ExternalBytes::Set(Allocator* allocator, Component component, int64_t bytes) {
  if (allocator_ != nullptr) {
    WEFT_RETURN_IF_ERROR(allocator_->CountExternal(component_, -bytes_));
    allocator_ = nullptr;
  }
  WEFT_RETURN_IF_ERROR(allocator->CountExternal(component, bytes));
  allocator_ = allocator;
  component_ = component;
  bytes_ = bytes;
  return OkStatus();
}

Result<BlockRef> Allocator::Allocate(Component component, size_t bytes) {
  if (bytes > size_t{1} << 60) return OverLimit(component, INT64_MAX);
  const size_t rounded = BlockSize(bytes);
  const auto size = static_cast<int64_t>(rounded);
  std::lock_guard lock(mutex_);
  Block* block = TakeCached(rounded);
  if (block == nullptr) {
    void* data = TakeNew(rounded);
    if (data == nullptr) return OverLimit(component, size);
    block = new Block{data, rounded, bytes, component, this};
  }
  block->component = component;
  block->asked = bytes;
  if (noting_) noted_.push_back({static_cast<std::byte*>(block->data), block->bytes});
  Count(component, static_cast<int64_t>(bytes));
  return BlockRef(block);
}

int64_t Allocator::LimitOfSource() const {
  return limit_bytes_ == 0 ? 0 : std::max<int64_t>(limit_bytes_ - external_bytes_, 1);
}

void* Allocator::TakeNew(size_t bytes) {
  void* data = source_->Take(bytes, LimitOfSource());
  if (data != nullptr || cached_.empty()) return data;
  DropCached(limit_bytes_ == 0 ? 0
                               : std::max<int64_t>(limit_bytes_ - static_cast<int64_t>(bytes), 0));
  return source_->Take(bytes, LimitOfSource());
}

Status Allocator::CountExternal(Component component, int64_t bytes) {
  std::lock_guard lock(mutex_);
  if (bytes > 0 && limit_bytes_ > 0 && HeldBytes() + bytes > limit_bytes_) {
    DropCached(std::max<int64_t>(limit_bytes_ - bytes, 0));
    if (HeldBytes() + bytes > limit_bytes_) return OverLimit(component, bytes);
  }
  external_bytes_ += bytes;
  Count(component, bytes);
  return OkStatus();
}

int64_t Allocator::live_bytes(Component component) const {
  std::lock_guard lock(mutex_);
  return live_[static_cast<size_t>(component)];
}

int64_t Allocator::peak_bytes(Component component) const {
  std::lock_guard lock(mutex_);
  return peak_[static_cast<size_t>(component)];
}

MemoryBreakdown Allocator::Peaks() const {
  std::lock_guard lock(mutex_);
  return Breakdown(peak_);
}

MemoryBreakdown Allocator::TakeRecentPeaks() {
  std::lock_guard lock(mutex_);
  return Breakdown(std::exchange(recent_peak_, live_));
}

void Allocator::RaisePeaks(const MemoryBreakdown& peaks) {
  const std::array<int64_t, kComponents> raised = {
      peaks.parameters_bytes,  peaks.gradients_bytes, peaks.optimizer_bytes,
      peaks.activations_bytes, peaks.workspace_bytes, peaks.communication_bytes};
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < raised.size(); ++i) {
    peak_[i] = std::max(peak_[i], raised[i]);
    recent_peak_[i] = std::max(recent_peak_[i], raised[i]);
  }
}

void Allocator::StartNoting() {
  std::lock_guard lock(mutex_);
  noting_ = true;
  noted_.clear();
}

std::vector<MemoryPiece> Allocator::TakeNoted() {
  std::lock_guard lock(mutex_);
  noting_ = false;
  std::sort(noted_.begin(), noted_.end(),
            [](const MemoryPiece& a, const MemoryPiece& b) { return a.at < b.at; });
  std::vector<MemoryPiece> pieces;
  for (const MemoryPiece& next : std::exchange(noted_, {})) {
    // Neighbours that are not one piece to the source stay two.
    if (!pieces.empty() && next.at < pieces.back().at + pieces.back().bytes) {
      const auto end = std::max(pieces.back().at + pieces.back().bytes, next.at + next.bytes);
      pieces.back().bytes = static_cast<size_t>(end - pieces.back().at);
    } else {
      pieces.push_back(next);
    }
  }
  return pieces;
}

bool Allocator::AreFree(const std::vector<MemoryPiece>& pieces) const {
  std::lock_guard lock(mutex_);
  return std::all_of(pieces.begin(), pieces.end(), [&](const MemoryPiece& piece) {
    return source_->IsFree(piece.at, piece.bytes);
  });
}

MemoryBreakdown Allocator::Live() const {
  std::lock_guard lock(mutex_);
  return Breakdown(live_);
}

void Allocator::ResetPeaks() {
  std::lock_guard lock(mutex_);
  peak_ = live_;
}

int64_t Allocator::held_bytes() const {
  std::lock_guard lock(mutex_);
  return HeldBytes();
}

int64_t Allocator::system_allocations() const {
  std::lock_guard lock(mutex_);
  return source_->system_allocations();
}

void Allocator::Return(Block* block) {
  std::lock_guard lock(mutex_);
  Count(block->component, -static_cast<int64_t>(block->asked));
  if (source_->reuses()) {
    source_->Give(block->data, block->bytes);
    delete block;
    return;
  }
  cached_.emplace(block->bytes, block);
}

// The smallest block that fits, unless it wastes more than a quarter.
Allocator::Block* Allocator::TakeCached(size_t bytes) {
  auto it = cached_.lower_bound(bytes);
  if (it == cached_.end() || it->first > bytes + bytes / 4) return nullptr;
  Block* block = it->second;
  cached_.erase(it);
  return block;
}

void Allocator::DropCached(int64_t until_bytes_held) {
  while (!cached_.empty() && HeldBytes() > until_bytes_held) {
    auto largest = std::prev(cached_.end());
    Block* block = largest->second;
    source_->Give(block->data, block->bytes);
    delete block;
    cached_.erase(largest);
  }
}

void Allocator::Count(Component component, int64_t bytes) {
  auto i = static_cast<size_t>(component);
  live_[i] += bytes;
  peak_[i] = std::max(peak_[i], live_[i]);
  recent_peak_[i] = std::max(recent_peak_[i], live_[i]);
}

Status Allocator::OverLimit(Component component, int64_t bytes) const {
  std::string held;
  for (int i = 0; i < kComponents; ++i) {
    held += (i > 0 ? ", " : "") + std::string(ComponentName(static_cast<Component>(i))) + " " +
            std::to_string(live_[static_cast<size_t>(i)]);
  }
  return ExhaustedError(
      "allocating " + std::to_string(bytes) + " bytes for " +
      std::string(ComponentName(component)) + " with " + std::to_string(HeldBytes()) +
      " held goes past the limit of " +
      (limit_bytes_ > 0                              ? std::to_string(limit_bytes_) + " bytes"
       : source_->device().type == DeviceType::kCuda ? "what the device has"
                                                     : "what the system has") +
      " (" + held +
      "); hint: a smaller micro_batch, recompute: block, or more memory_per_rank_bytes");
}

}  // namespace weft::engine
