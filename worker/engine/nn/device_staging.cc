#include "worker/engine/nn/device_staging.h"

#include <utility>

namespace weft::engine {

DeviceStaging::~DeviceStaging() {
  (void)context_->host->up().WaitForAll();
  (void)context_->host->down().WaitForAll();
}

// The passes are over, and with them what gradients had on the device: the pieces, of the size of
// their buckets, count as these.
Status DeviceStaging::Pass(DType dtype, int64_t count, Move bring, const Operate& operate,
                           Move take) {
  constexpr size_t kMostPieces = 2;
  const Stream& stream = context_->stream;
  TransferQueue &up = context_->host->up(), &down = context_->host->down();
  while (pieces_.size() >= kMostPieces) {
    WEFT_RETURN_IF_ERROR(down.Await(stream, pieces_.front().job));
    pieces_.pop_front();
  }
  WEFT_ASSIGN_OR_RETURN(Tensor memory,
                        Tensor::New(*context_, Component::kGradients, dtype, {count}));
  auto* const above = static_cast<std::byte*>(memory.view().data);
  const int64_t brought = up.Enqueue(
      [&up, above, bring = std::move(bring)] {
        bring(up, above);
        return OkStatus();
      },
      stream);
  WEFT_RETURN_IF_ERROR(up.Await(stream, brought));
  const Work work = operate(memory);
  const int64_t taken = down.Enqueue([&down, above, work, take = std::move(take)]() -> Status {
    WEFT_RETURN_IF_ERROR(work.WaitUncounted(down.stream()));
    take(down, above);
    return OkStatus();
  });
  pieces_.push_back({taken, std::move(memory)});
  return OkStatus();
}

Status DeviceStaging::Pass(const TensorView& values, const Operate& operate) {
  const size_t bytes = values.Bytes();
  return Pass(
      values.dtype, values.shape.Elements(),
      [=](TransferQueue& lane, std::byte* above) { lane.Copy(above, values.data, bytes); }, operate,
      [=](TransferQueue& lane, std::byte* above) { lane.Copy(values.data, above, bytes); });
}

Status DeviceStaging::Finish() {
  WEFT_RETURN_IF_ERROR(context_->host->down().WaitForAll());
  pieces_.clear();
  return OkStatus();
}

}  // namespace weft::engine
