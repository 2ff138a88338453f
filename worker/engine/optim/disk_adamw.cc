#include "worker/engine/optim/disk_adamw.h"

#include <algorithm>
#include <optional>
#include <string>

#include "common/number.h"
#include "worker/engine/nn/parameter_file.h"
#include "worker/engine/nn/parameter_file_iterator.h"
#include "worker/engine/optim/fused_optimizer.h"
#include "worker/engine/optim/optimizer_state.h"
#include "worker/engine/tensor/host_memory_pool.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

// Numbers of a tile: 8 MiB of moments, which is enough for a disk's full rate.
constexpr int64_t kTileElements = int64_t{1} << 20;
constexpr int64_t kLine = 16;  // elements of 64 bytes
constexpr auto kBlock = static_cast<int64_t>(AsyncFile::kAlignment / sizeof(float));

}  // namespace

/// The first or second moment of a tensor.
class DiskAdamW::Moment : public StoredNumbers {
 public:
  Moment(DiskAdamW* owner, size_t tensor, int64_t which)
      : owner_(owner), tensor_(tensor), which_(which) {}

  Status Read(int64_t first, std::span<std::byte> to) override {
    return ForEachRun(first, to.size(), [&](size_t tile, size_t from, size_t at, size_t bytes) {
      return owner_->file_->Read(owner_->buffers_[0], tile, from, to.subspan(at, bytes));
    });
  }

  Status Write(int64_t first, std::span<const std::byte> from) override {
    return ForEachRun(first, from.size(), [&](size_t tile, size_t to, size_t at, size_t bytes) {
      return owner_->file_->Write(owner_->buffers_[0], tile, to, from.subspan(at, bytes));
    });
  }

 private:
  /// run(tile, first byte in it, first byte of those asked for, bytes).
  template <class Run>
  Status ForEachRun(int64_t first, size_t bytes, Run&& run) {
    const int64_t end = first + static_cast<int64_t>(bytes / sizeof(float));
    WEFT_CHECK(first >= 0 && end <= owner_->tensors_[tensor_].count, "within the tensor");
    int64_t done = first;
    for (size_t t = owner_->entries_[tensor_].first_tile; done < end; ++t) {
      for (const Piece& piece : owner_->tiles_[t].pieces) {
        const int64_t to = std::min(end, piece.first + piece.count);
        if (piece.tensor != tensor_ || done >= to) continue;
        const int64_t offset =
            piece.offset + which_ * RoundUp(piece.count, kLine) + (done - piece.first);
        WEFT_RETURN_IF_ERROR(run(t, static_cast<size_t>(offset) * sizeof(float),
                                 static_cast<size_t>(done - first) * sizeof(float),
                                 static_cast<size_t>(to - done) * sizeof(float)));
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
  std::unique_ptr<DiskAdamW> made(new DiskAdamW(spec, parameters));
  for (const ParameterPart& part : parts) {
    const Parameter& parameter = parameters[part.index];
    made->tensors_.push_back(
        UpdateTensorOf(parameters, part, rules[static_cast<size_t>(part.index)]));
    const size_t tensor = made->entries_.size();
    std::optional<NamedTensor::Place> place;
    if (!part.whole) place = {.whole = parameter.shape, .first = part.first};
    for (const StateTensor& state : StateTensorsOf(spec, parameter)) {
      WEFT_CHECK(state.format == StateFormat(), "moments in a file are f32");
    }
    made->entries_.push_back({.of = part,
                              .part = std::move(place),
                              .moments = {std::make_shared<Moment>(made.get(), tensor, 0),
                                          std::make_shared<Moment>(made.get(), tensor, 1)}});
  }
  if (parameters.gradients()) made->gradients_ = parameters.gradients().As<float>();
  made->CutTiles();
  WEFT_RETURN_IF_ERROR(made->Allocate(context, queue));
  return std::unique_ptr<Optimizer>(std::move(made));
}

// Where values are in a file, tiles end with a unit.
void DiskAdamW::CutTiles() {
  int64_t room = 0;  // of the last tile
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const int64_t unit = parameters_[entries_[t].of.index].unit;
    const bool begins =
        parameters_.file() != nullptr && !tiles_.empty() && tiles_.back().unit != unit;
    if (begins) room = 0;
    for (int64_t first = 0; first < tensors_[t].count;) {
      if (room < kLine) {
        tiles_.emplace_back().unit = unit;
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
  for (Tile& tile : tiles_) tile.elements = RoundUp(tile.elements, kBlock);
}

// All moments are zero.
Status DiskAdamW::Allocate(Context& context, AsyncFile::Queue queue) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(float));
  int64_t largest = kBlock;
  std::vector<int64_t> bytes;
  for (const Tile& tile : tiles_) {
    largest = std::max(largest, tile.elements);
    bytes.push_back(tile.elements * kBytes);
  }
  for (size_t i = 0; i < kBuffers; ++i) {
    WEFT_ASSIGN_OR_RETURN(Tensor memory,
                          NewTileMemory(context, Component::kOptimizer, largest * kBytes));
    WEFT_RETURN_IF_ERROR(Clear(context.stream, memory));
    buffers_.push_back(std::move(memory));
  }
  WEFT_ASSIGN_OR_RETURN(file_, TileFile::New(context.host, bytes, queue));
  return OkStatus();
}

Status DiskAdamW::FinishRead(Context& context, size_t tile) {
  Stopwatch watch;
  Status status = file_->FinishRead(tile);
  if (!overlapped_) context.host->files().waited_seconds += watch.Lap();
  return status;
}

Status DiskAdamW::FinishWrite(Context& context, size_t tile) {
  Stopwatch watch;
  Status status = file_->FinishWrite(tile);
  if (!overlapped_) context.host->files().waited_seconds += watch.Lap();
  return status;
}

Status DiskAdamW::UpdateTile(Context& context, const UpdateArgs& args, size_t tile) {
  std::vector<kernels::UpdateTensor> tensors;
  for (const Piece& piece : tiles_[tile].pieces) {
    kernels::UpdateTensor part = tensors_[piece.tensor];
    PlaceOf(parameters_, entries_[piece.tensor].of, part);
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
  return FindFusedRule(spec_)->run(
      context.stream, spec_, InputsOf(context, args, tensors),
      {context.Number(args.update, &StepNumbers::update), args.keeps_second_moments});
}

Status DiskAdamW::Update(Context& context, const UpdateArgs& args) {
  overlapped_ = args.beside;
  WEFT_RETURN_IF_ERROR(file_->Flush(buffers_[0]));
  return RunTiles(context, args);
}

// The buffer of tile i + 1 is that of tile i - 2.
Status DiskAdamW::RunTiles(Context& context, const UpdateArgs& args) {
  std::optional<ParameterFileIterator> own;
  UnitIterator* walk = args.walk;
  if (walk == nullptr && parameters_.file() != nullptr) {
    walk = &own.emplace(parameters_.file(), kUpdateIteration);
  }
  const size_t count = tiles_.size();
  if (count > 0) WEFT_RETURN_IF_ERROR(StartRead(0));
  for (size_t i = 0; i < count; ++i) {
    if (i >= 2) WEFT_RETURN_IF_ERROR(FinishWrite(context, i - 2));
    if (i + 1 < count) WEFT_RETURN_IF_ERROR(StartRead(i + 1));
    if (walk) WEFT_RETURN_IF_ERROR(walk->MoveTo(tiles_[i].unit));
    WEFT_RETURN_IF_ERROR(FinishRead(context, i));
    WEFT_RETURN_IF_ERROR(UpdateTile(context, args, i));
    WEFT_RETURN_IF_ERROR(StartWrite(i));
    const Piece& last = tiles_[i].pieces.back();
    const bool whole = last.first + last.count == tensors_[last.tensor].count;
    context.host->updated().Reach(entries_[last.tensor].of.index + (whole ? 1 : 0));
  }
  for (size_t i = count >= 2 ? count - 2 : 0; i < count; ++i) {
    WEFT_RETURN_IF_ERROR(FinishWrite(context, i));
  }
  return walk ? walk->Finish() : OkStatus();
}

std::vector<NamedTensor> DiskAdamW::StateTensors() const {
  std::vector<NamedTensor> tensors;
  for (const Entry& entry : entries_) {
    const Parameter& parameter = parameters_[entry.of.index];
    size_t which = 0;
    for (const StateTensor& state : StateTensorsOf(spec_, parameter)) {
      tensors.push_back({.name = spec_.name + "/" + parameter.name + "/" + std::string(state.name),
                         .view = {nullptr, state.format.dtype, entry.of.value.shape},
                         .part = entry.part,
                         .stored = entry.moments[which++],
                         .parameter = entry.of.index,
                         .moment = state.moment});
    }
  }
  return tensors;
}

}  // namespace weft::engine
