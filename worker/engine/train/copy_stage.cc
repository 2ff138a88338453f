#include "worker/engine/train/copy_stage.h"

#include <utility>

namespace weft::engine {

using kernels::cuda::Event;
using kernels::cuda::PinnedMemory;
using kernels::cuda::StreamState;

Result<std::unique_ptr<CopyStage>> CopyStage::New(Context& context) {
  auto stage = std::make_unique<CopyStage>();
  WEFT_ASSIGN_OR_RETURN(stage->stream_, StreamState::Create(context.stream.device.index));
  for (Half& half : stage->halves_) {
    WEFT_ASSIGN_OR_RETURN(half.copied, Event::Create(context.stream));
    WEFT_ASSIGN_OR_RETURN(half.free, Event::Create(context.stream));
  }
  return stage;
}

Status CopyStage::StartStep() {
  Half& half = halves_[1 - reading_];
  half.taken = 0;
  // The event is two steps old, unless batches that nobody wanted came in between.
  WEFT_RETURN_IF_ERROR(half.copied.Wait());
  return half.free.Block(stream_->stream());
}

Status CopyStage::Grow(Context& context, Piece& piece, size_t bytes) {
  const size_t grown = bytes + bytes / 4;
  piece = {};
  WEFT_ASSIGN_OR_RETURN(piece.tensor, Tensor::New(context, Component::kWorkspace, DType::kU8,
                                                  Shape{static_cast<int64_t>(grown)}));
  WEFT_ASSIGN_OR_RETURN(piece.pinned, PinnedMemory::Allocate(grown));
  // The allocator's memory may still be read by work that is enqueued on the other stream.
  WEFT_ASSIGN_OR_RETURN(Event now, Event::Create(context.stream));
  WEFT_RETURN_IF_ERROR(now.Place(context.stream));
  return now.Block(stream_->stream());
}

Result<BatchStage::Space> CopyStage::Take(Context& context, size_t bytes) {
  Half& half = halves_[1 - reading_];
  if (half.taken == half.pieces.size()) half.pieces.emplace_back();
  Piece& piece = half.pieces[half.taken++];
  if (piece.pinned.bytes() < bytes) WEFT_RETURN_IF_ERROR(Grow(context, piece, bytes));
  return Space{piece.tensor, piece.pinned.data()};
}

Status CopyStage::Send(Context&, const Space& space, size_t bytes) {
  WEFT_RETURN_IF_ERROR(
      kernels::cuda::CopyToDevice(stream_->stream(), space.tensor.view().data, space.host, bytes));
  return halves_[1 - reading_].copied.Place(stream_->stream());
}

Status CopyStage::Use(Context& context) {
  WEFT_RETURN_IF_ERROR(halves_[reading_].free.Place(context.stream));
  reading_ = 1 - reading_;
  return halves_[reading_].copied.Block(context.stream);
}

}  // namespace weft::engine
