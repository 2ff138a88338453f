#include "worker/engine/optim/disk_adamw.h"

#include <algorithm>
#include <cstring>

#include "common/hash.h"
#include "worker/engine/optim/fused_optimizer.h"
#include "worker/engine/tensor/host_tier.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

// Numbers of a tile: 8 MiB of moments, which is enough for a disk's full rate.
constexpr int64_t kTileElements = int64_t{1} << 20;
constexpr int64_t kLine = 16;  // elements of 64 bytes
constexpr auto kBlock = static_cast<int64_t>(AsyncFile::kAlignment / sizeof(float));

int64_t RoundUp(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

uint64_t HashOf(const float* data, size_t bytes) {
  return Hash64({reinterpret_cast<const std::byte*>(data), bytes});
}

}  // namespace

/// The first or second moment of a tensor.
class DiskAdamW::Moment : public StoredNumbers {
 public:
  Moment(DiskAdamW* owner, size_t tensor, int64_t which)
      : owner_(owner), tensor_(tensor), which_(which) {}

  Status Read(int64_t first, std::span<std::byte> to) override {
    return ForEachRun(first, to.size(), [&](std::byte* in_tile, size_t at, size_t bytes, Loaded&) {
      std::memcpy(to.data() + at, in_tile, bytes);
    });
  }

  Status Write(int64_t first, std::span<const std::byte> from) override {
    return ForEachRun(first, from.size(),
                      [&](std::byte* in_tile, size_t at, size_t bytes, Loaded& loaded) {
                        std::memcpy(in_tile, from.data() + at, bytes);
                        loaded.replaced = true;
                      });
  }

 private:
  /// run(where it stands in a buffer, its first byte of those asked for, bytes, the buffer's).
  template <class Run>
  Status ForEachRun(int64_t first, size_t bytes, Run&& run) {
    const int64_t end = first + static_cast<int64_t>(bytes / sizeof(float));
    WEFT_CHECK(first >= 0 && end <= owner_->tensors_[tensor_].count, "within the tensor");
    int64_t done = first;
    for (size_t t = owner_->entries_[tensor_].first_tile; done < end; ++t) {
      for (const Piece& piece : owner_->tiles_[t].pieces) {
        const int64_t to = std::min(end, piece.first + piece.count);
        if (piece.tensor != tensor_ || done >= to) continue;
        WEFT_RETURN_IF_ERROR(owner_->Load(t));
        const int64_t offset =
            piece.offset + which_ * RoundUp(piece.count, kLine) + (done - piece.first);
        run(reinterpret_cast<std::byte*>(owner_->Buffer(t) + offset),
            static_cast<size_t>(done - first) * sizeof(float),
            static_cast<size_t>(to - done) * sizeof(float), owner_->loaded_[t % kBuffers]);
        done = to;
      }
    }
    return OkStatus();
  }

  DiskAdamW* owner_;
  size_t tensor_;
  int64_t which_;
};

Result<std::unique_ptr<Optimizer>> DiskAdamW::New(Context& context, const OptimizerSpec& spec,
                                                  const ParameterSet& parameters,
                                                  const std::vector<ParameterRule>& rules,
                                                  std::span<const ParameterPart> parts,
                                                  AsyncFile::Queue queue) {
  std::unique_ptr<DiskAdamW> made(new DiskAdamW(spec));
  for (const ParameterPart& part : parts) {
    const Parameter& parameter = parameters[part.index];
    made->tensors_.push_back(
        UpdateTensorOf(parameters, part, rules[static_cast<size_t>(part.index)]));
    const size_t tensor = made->entries_.size();
    std::optional<NamedTensor::Place> place;
    if (!part.whole) place = {.whole = parameter.shape, .first = part.first};
    made->entries_.push_back({.name = parameter.name,
                              .shape = part.value.shape,
                              .part = std::move(place),
                              .parameter = part.index,
                              .moments = {std::make_shared<Moment>(made.get(), tensor, 0),
                                          std::make_shared<Moment>(made.get(), tensor, 1)}});
  }
  if (parameters.gradients()) made->gradients_ = parameters.gradients().As<float>();
  made->CutTiles();
  WEFT_RETURN_IF_ERROR(made->Allocate(context, queue));
  return std::unique_ptr<Optimizer>(std::move(made));
}

void DiskAdamW::CutTiles() {
  int64_t room = 0;  // of the last tile
  for (size_t t = 0; t < tensors_.size(); ++t) {
    for (int64_t first = 0; first < tensors_[t].count;) {
      if (room < kLine) {
        tiles_.emplace_back();
        room = kTileElements;
      }
      const int64_t count = std::min(tensors_[t].count - first, room / kLine * kLine);
      if (first == 0) entries_[t].first_tile = tiles_.size() - 1;
      Tile& tile = tiles_.back();
      tile.pieces.push_back({t, first, count, tile.elements});
      tile.elements += 2 * RoundUp(count, kLine);
      room -= RoundUp(count, kLine);
      first += count;
    }
  }
  uint64_t offset = 0;
  for (Tile& tile : tiles_) {
    tile.elements = RoundUp(tile.elements, kBlock);
    tile.offset = offset;
    offset += tile.Bytes();
  }
}

DiskAdamW::~DiskAdamW() {
  if (books_ != nullptr) books_->bytes -= file_bytes_;
}

Status DiskAdamW::WaitForFile(int64_t number) {
  Stopwatch watch;
  Status status = file_->queue().Wait(number);
  books_->waited_seconds += watch.Lap();
  return status;
}

// All moments are zero.
Status DiskAdamW::Allocate(Context& context, AsyncFile::Queue queue) {
  int64_t largest = kBlock;
  int64_t bytes = static_cast<int64_t>(AsyncFile::kAlignment);
  for (const Tile& tile : tiles_) {
    largest = std::max(largest, tile.elements);
    bytes = static_cast<int64_t>(tile.offset + tile.Bytes());
  }
  pending_.assign(tiles_.size(), 0);
  for (size_t i = 0; i < kBuffers; ++i) {
    // Blocks of the allocator begin at cache lines.
    WEFT_ASSIGN_OR_RETURN(Tensor memory, Tensor::New(context, Component::kOptimizer, DType::kF32,
                                                     {largest + kBlock}));
    WEFT_RETURN_IF_ERROR(Clear(context.stream, memory));
    const auto at = reinterpret_cast<uintptr_t>(memory.view().data);
    const uintptr_t skipped =
        (AsyncFile::kAlignment - at % AsyncFile::kAlignment) % AsyncFile::kAlignment;
    buffers_.push_back(memory.Elements(static_cast<int64_t>(skipped / sizeof(float)), largest));
  }
  WEFT_ASSIGN_OR_RETURN(file_, AsyncFile::Create(context.host->directory(), bytes, queue));
  books_ = &context.host->files();
  books_->bytes += file_bytes_ = bytes;
  for (size_t i = 0; i < tiles_.size(); ++i) {
    WEFT_RETURN_IF_ERROR(StartWrite(i));
    if (i > 0) WEFT_RETURN_IF_ERROR(FinishWrite(i - 1));
  }
  return tiles_.empty() ? OkStatus() : FinishWrite(tiles_.size() - 1);
}

Status DiskAdamW::StartRead(size_t tile) {
  const Tile& t = tiles_[tile];
  WEFT_ASSIGN_OR_RETURN(pending_[tile],
                        file_->queue().Start(false, Buffer(tile), t.Bytes(), t.offset));
  return OkStatus();
}

Status DiskAdamW::FinishRead(size_t tile) {
  const Tile& t = tiles_[tile];
  WEFT_RETURN_IF_ERROR(WaitForFile(pending_[tile]));
  if (HashOf(Buffer(tile), t.Bytes()) == t.hash) return OkStatus();
  return CorruptError(file_->path() + " at byte " + std::to_string(t.offset) +
                      " is not what was written there; hint: the disk under "
                      "resources.offload_directory loses data");
}

Status DiskAdamW::StartWrite(size_t tile) {
  Tile& t = tiles_[tile];
  t.hash = HashOf(Buffer(tile), t.Bytes());
  WEFT_ASSIGN_OR_RETURN(pending_[tile],
                        file_->queue().Start(true, Buffer(tile), t.Bytes(), t.offset));
  return OkStatus();
}

Status DiskAdamW::FinishWrite(size_t tile) {
  return WaitForFile(pending_[tile]);
}

Status DiskAdamW::UpdateTile(Context& context, const UpdateArgs& args, size_t tile) {
  std::vector<kernels::UpdateTensor> tensors;
  for (const Piece& piece : tiles_[tile].pieces) {
    kernels::UpdateTensor part = tensors_[piece.tensor];
    if (part.parameter != nullptr) part.parameter += piece.first;
    if (part.bf16_parameter != nullptr) {
      part.bf16_parameter += piece.first;
      part.first_element += piece.first;
    }
    MoveGradient(gradients_, args.gradients, part);
    part.gradient += piece.first;
    part.count = piece.count;
    float* moments = Buffer(tile) + piece.offset;
    part.state = {moments, moments + RoundUp(piece.count, kLine)};
    tensors.push_back(part);
  }
  return FindFusedRule(spec_)->run(context.stream, spec_, InputsOf(context, args, tensors),
                                   context.Number(args.update, &StepNumbers::update));
}

Status DiskAdamW::Update(Context& context, const UpdateArgs& args) {
  for (size_t buffer = 0; buffer < kBuffers; ++buffer) {
    WEFT_RETURN_IF_ERROR(WriteBack(buffer));
    loaded_[buffer] = {};
  }
  return RunTiles(context, args);
}

// The buffer of tile i + 1 is that of tile i - 2.
Status DiskAdamW::RunTiles(Context& context, const UpdateArgs& args) {
  const size_t count = tiles_.size();
  if (count > 0) WEFT_RETURN_IF_ERROR(StartRead(0));
  for (size_t i = 0; i < count; ++i) {
    if (i >= 2) WEFT_RETURN_IF_ERROR(FinishWrite(i - 2));
    if (i + 1 < count) WEFT_RETURN_IF_ERROR(StartRead(i + 1));
    WEFT_RETURN_IF_ERROR(FinishRead(i));
    WEFT_RETURN_IF_ERROR(UpdateTile(context, args, i));
    WEFT_RETURN_IF_ERROR(StartWrite(i));
    const Piece& last = tiles_[i].pieces.back();
    const bool whole = last.first + last.count == tensors_[last.tensor].count;
    context.host->updated().Reach(entries_[last.tensor].parameter + (whole ? 1 : 0));
  }
  for (size_t i = count >= 2 ? count - 2 : 0; i < count; ++i) {
    WEFT_RETURN_IF_ERROR(FinishWrite(i));
  }
  return OkStatus();
}

Status DiskAdamW::WriteBack(size_t buffer) {
  Loaded& loaded = loaded_[buffer];
  if (!loaded.replaced) return OkStatus();
  loaded.replaced = false;
  const auto tile = static_cast<size_t>(loaded.tile);
  WEFT_RETURN_IF_ERROR(StartWrite(tile));
  return FinishWrite(tile);
}

Status DiskAdamW::Load(size_t tile) {
  Loaded& loaded = loaded_[tile % kBuffers];
  if (loaded.tile == static_cast<int64_t>(tile)) return OkStatus();
  WEFT_RETURN_IF_ERROR(WriteBack(tile % kBuffers));
  loaded = {};
  WEFT_RETURN_IF_ERROR(StartRead(tile));
  WEFT_RETURN_IF_ERROR(FinishRead(tile));
  loaded.tile = static_cast<int64_t>(tile);
  return OkStatus();
}

std::vector<NamedTensor> DiskAdamW::StateTensors() const {
  std::vector<NamedTensor> tensors;
  for (const Entry& entry : entries_) {
    for (const size_t which : {0, 1}) {
      tensors.push_back(
          {.name = "adamw/" + entry.name + (which == 0 ? "/first_moment" : "/second_moment"),
           .view = {nullptr, DType::kF32, entry.shape},
           .part = entry.part,
           .stored = entry.moments[which]});
    }
  }
  return tensors;
}

}  // namespace weft::engine
