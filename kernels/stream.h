#pragma once

#include "common/status.h"
#include "kernels/tensor_view.h"

namespace weft {

namespace kernels::cuda {
class StreamState;
}

/// Where operations run, in order: a CPU (the call returns when the work is done) or a CUDA stream
/// (the call returns when it is enqueued). Passed to every operation; not thread-safe.
struct Stream {
  Device device;
  kernels::cuda::StreamState* cuda = nullptr;  ///< Of a CUDA device (kernels/cuda/device.h).
};

}  // namespace weft

/// Defines the public entry of an operation: picks the back end by device. Every operation `Op`
/// has cpu::Op in <op>_cpu.cc and cuda::Op in <op>_cuda.cu, or in <op>_nocuda.cc where CUDA is not
/// built or the kernel is not written, which answers kUnavailable.
#define WEFT_DEVICE_OP(Op, Args)                                            \
  namespace cpu {                                                           \
  Status Op(const Stream& stream, const Args& args);                        \
  }                                                                         \
  namespace cuda {                                                          \
  Status Op(const Stream& stream, const Args& args);                        \
  }                                                                         \
  inline Status Op(const Stream& stream, const Args& args) {                \
    return stream.device.type == DeviceType::kCuda ? cuda::Op(stream, args) \
                                                   : cpu::Op(stream, args); \
  }

/// The body of a <op>_nocuda.cc.
#define WEFT_NO_CUDA_OP(Op, Args)                                                                 \
  namespace weft::kernels::cuda {                                                                 \
  Status Op(const Stream&, const Args&) {                                                         \
    return UnavailableError(#Op ": has no CUDA kernel in this build; hint: cmake --preset cuda"); \
  }                                                                                               \
  }
