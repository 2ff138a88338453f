#include "worker/engine/tensor/copy_stream.h"

#include <algorithm>
#include <utility>

#include "common/model/host_staging.h"
#include "kernels/elementwise/elementwise.h"

namespace weft::engine {

using kernels::cuda::Event;

Result<std::unique_ptr<CopyStream>> CopyStream::New(int device, LinkDirection direction) {
  std::unique_ptr<CopyStream> copies(new CopyStream(direction));
  WEFT_ASSIGN_OR_RETURN(copies->stream_, kernels::cuda::StreamState::Create(device));
  return copies;
}

CopyStream::~CopyStream() {
  if (stream_ != nullptr) (void)stream_->Synchronize();
}

Result<Event> CopyStream::PointOf(const Stream& stream) {
  WEFT_ASSIGN_OR_RETURN(Event point, Event::Create(stream));
  WEFT_RETURN_IF_ERROR(point.Place(stream));
  return Result<Event>(std::move(point));
}

Status CopyStream::Copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return OkStatus();
  return direction_ == LinkDirection::kUp
             ? kernels::cuda::CopyToDevice(stream_->stream(), to, from, bytes)
             : kernels::cuda::CopyToHost(stream_->stream(), to, from, bytes);
}

Status CopyStream::ReserveStaging(Allocator& host) {
  for (Stage& stage : stages_) {
    if (stage.memory.data() != nullptr) continue;
    WEFT_ASSIGN_OR_RETURN(stage.memory, host.Allocate(Component::kWorkspace, kHostStageBytes));
    WEFT_ASSIGN_OR_RETURN(stage.sent, Event::Create(stream_->stream()));
  }
  return OkStatus();
}

Status CopyStream::Convert(const TensorView& to, const TensorView& from) {
  const int64_t count = from.shape.Elements();
  const size_t from_size = DTypeSize(from.dtype), to_size = DTypeSize(to.dtype);
  const auto most = static_cast<int64_t>(kHostStageBytes / to_size);
  for (int64_t first = 0; first < count; first += most) {
    const int64_t elements = std::min(most, count - first);
    Stage& stage = stages_[next_];
    next_ = 1 - next_;
    WEFT_CHECK(stage.memory.data() != nullptr, "staging is reserved before anything is converted");
    WEFT_RETURN_IF_ERROR(stage.sent.Wait());
    const auto at = static_cast<size_t>(first);
    const TensorView piece(stage.memory.data(), to.dtype, {elements});
    WEFT_RETURN_IF_ERROR(kernels::Cast(
        Stream(),
        {{static_cast<std::byte*>(from.data) + at * from_size, from.dtype, {elements}}, piece}));
    WEFT_RETURN_IF_ERROR(
        Copy(static_cast<std::byte*>(to.data) + at * to_size, piece.data, piece.Bytes()));
    WEFT_RETURN_IF_ERROR(stage.sent.Place(stream_->stream()));
  }
  return OkStatus();
}

}  // namespace weft::engine
