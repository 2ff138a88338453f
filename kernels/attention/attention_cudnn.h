#pragma once

#include "common/status.h"
#include "kernels/attention/attention.h"

namespace weft::kernels::cuda {

/// Attention by cuDNN, of arguments that were checked. False, and nothing is done, where the stream
/// is to use our kernels, where there is no cuDNN, or where it does not take the call, which the
/// log records once for each reason; kUnavailable with the reason where the stream is to use cuDNN
/// alone.
///
/// It takes bf16 and f16 with rows aligned to 16 bytes, in sequences of one known length
/// (`length`), without dropout. How to compute them is asked of the library once for their sizes
/// and strides, which takes seconds, and kept with the stream. Its backward pass adds to dq in any
/// order, so that bits of dq may differ from run to run. No device memory but the stream's scratch
/// memory is used.
Result<bool> CudnnAttentionForward(const Stream& stream, std::string_view op,
                                   const AttentionForwardArgs& args);
Result<bool> CudnnAttentionBackward(const Stream& stream, std::string_view op,
                                    const AttentionBackwardArgs& args);

}  // namespace weft::kernels::cuda
