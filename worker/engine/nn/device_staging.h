#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>

#include "common/status.h"
#include "worker/engine/comm/work.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/host_memory_pool.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// Collectives on tensors in the host memory pools of CUDA devices. NCCL is certain to read and
/// write device memory only, so the tensors pass through it piece by piece: up, the operation, down
/// again. While ranks operate on a piece the next one goes up and the previous one down; the host
/// waits in Finish alone. Not thread-safe.
class DeviceStaging {
 public:
  /// Copies between the host memory pool and the piece at `above` on the device, in a job of
  /// `lane`.
  using Move = std::function<void(TransferQueue& lane, std::byte* above)>;
  /// Starts the operation on a piece.
  using Operate = std::function<Work(const TensorView& piece)>;

  /// `context`, of a CUDA device with a host memory pool, outlives this.
  explicit DeviceStaging(Context& context) : context_(&context) {}
  /// Waits for what is under way.
  ~DeviceStaging();
  DeviceStaging(const DeviceStaging&) = delete;
  DeviceStaging& operator=(const DeviceStaging&) = delete;

  /// Whether collectives on the host memory pool of `context` need this.
  static bool IsNeededBy(const Context& context) {
    return context.host != nullptr && context.stream.device.type == DeviceType::kCuda;
  }

  /// Has a piece of `count` elements brought up, operated on and taken down.
  Status Pass(DType dtype, int64_t count, Move bring, const Operate& operate, Move take);
  /// Has a contiguous tensor of the host memory pool brought up, operated on and taken down again.
  Status Pass(const TensorView& values, const Operate& operate);

  /// Waits until all has come down.
  Status Finish();

 private:
  struct Piece {
    int64_t job = 0;  ///< Of the lane down.
    Tensor memory;
  };

  Context* context_;
  std::deque<Piece> pieces_;  ///< That may be under way.
};

}  // namespace weft::engine
