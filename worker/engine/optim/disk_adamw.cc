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

Result<std::unique_ptr<Optimizer>> DiskAdamW::New(Context& context, const OptimizerSpec& spec,
                                                  const ParameterSet& parameters,
                                                  const std::vector<ParameterRule>& rules,
                                                  std::span<const ParameterPart> parts,
                                                  AsyncFile::Queue queue) {
  std::unique_ptr<DiskAdamW> made(new DiskAdamW(spec));
  for (const ParameterPart& part : parts) {
    WEFT_CHECK(part.whole, "ranks that share updates keep their state in memory");
    const Parameter& parameter = parameters[part.index];
    made->tensors_.push_back(
        UpdateTensorOf(parameters, part, rules[static_cast<size_t>(part.index)]));
    made->entries_.push_back({parameter.name, parameter.shape, part.index});
  }
  made->gradients_ = parameters.gradients().As<float>();
  made->CutTiles();
  WEFT_RETURN_IF_ERROR(made->Allocate(context, queue));
  return std::unique_ptr<Optimizer>(std::move(made));
}

void DiskAdamW::CutTiles() {
  int64_t room = 0;  // of the last tile
  for (size_t t = 0; t < tensors_.size(); ++t) {
    gathered_at_.push_back(gathered_elements_);
    gathered_elements_ += 2 * RoundUp(tensors_[t].count, kLine);
    for (int64_t first = 0; first < tensors_[t].count;) {
      if (room < kLine) {
        tiles_.emplace_back();
        room = kTileElements;
      }
      const int64_t count = std::min(tensors_[t].count - first, room / kLine * kLine);
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
  if (gathered_) WEFT_RETURN_IF_ERROR(WriteBack());
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

void DiskAdamW::CopyTile(size_t tile, bool to_buffer) {
  for (const Piece& piece : tiles_[tile].pieces) {
    const int64_t moment = RoundUp(tensors_[piece.tensor].count, kLine);
    const auto bytes = static_cast<size_t>(piece.count) * sizeof(float);
    for (const int64_t k : {0, 1}) {
      float* in_buffer = Buffer(tile) + piece.offset + k * RoundUp(piece.count, kLine);
      float* gathered =
          gathered_.As<float>() + gathered_at_[piece.tensor] + k * moment + piece.first;
      std::memcpy(to_buffer ? in_buffer : gathered, to_buffer ? gathered : in_buffer, bytes);
    }
  }
}

Status DiskAdamW::Gather(Context& context) {
  if (gathered_) return OkStatus();
  Context host = context;
  host.allocator = &context.host->allocator();
  WEFT_ASSIGN_OR_RETURN(Tensor memory, Tensor::New(host, Component::kOptimizer, DType::kF32,
                                                   {std::max<int64_t>(gathered_elements_, 1)}));
  gathered_ = std::move(memory);
  for (size_t i = 0; i < tiles_.size(); ++i) {
    Status read = StartRead(i);
    if (read.ok()) read = FinishRead(i);
    if (!read.ok()) {
      gathered_ = {};
      return read;
    }
    CopyTile(i, /*to_buffer=*/false);
  }
  return OkStatus();
}

// Only a restored state differs from what the file has.
Status DiskAdamW::WriteBack() {
  for (size_t i = 0; i < tiles_.size(); ++i) {
    // What fills the tile up is zero.
    std::memset(Buffer(i), 0, tiles_[i].Bytes());
    CopyTile(i, /*to_buffer=*/true);
    if (HashOf(Buffer(i), tiles_[i].Bytes()) == tiles_[i].hash) continue;
    WEFT_RETURN_IF_ERROR(StartWrite(i));
    WEFT_RETURN_IF_ERROR(FinishWrite(i));
  }
  gathered_ = {};
  return OkStatus();
}

std::vector<NamedTensor> DiskAdamW::StateTensors() const {
  std::vector<NamedTensor> tensors;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    float* moments = gathered_.As<float>() + gathered_at_[t];
    for (const char* name : {"first_moment", "second_moment"}) {
      tensors.push_back(
          {"adamw/" + entries_[t].name + "/" + name, {moments, DType::kF32, entries_[t].shape}});
      moments += RoundUp(tensors_[t].count, kLine);
    }
  }
  return tensors;
}

}  // namespace weft::engine
