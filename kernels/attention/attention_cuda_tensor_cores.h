#pragma once

// Attention on the tensor cores, for bf16 and f16. Its kernels take long to compile: those of each
// generation are a file of their own, so that compilers work on them side by side.

#include <string_view>

#include "common/status.h"
#include "kernels/attention/attention_cuda_work.h"
#include "kernels/stream.h"

namespace weft::kernels::cuda {

/// Enqueues a pass, with arguments that were checked, for T BFloat16 or Half in rows aligned to 16
/// bytes. A backward pass finds the stats in place. On any device from sm_80 on.
template <class T>
Status AttentionForwardOnTensorCores(const Stream& stream, std::string_view op,
                                     const AttentionTensors<T>& a);
template <class T>
Status AttentionBackwardOnTensorCores(const Stream& stream, std::string_view op,
                                      const AttentionTensors<T>& a);

/// The same by instructions that Hopper alone has (sm_90a).
template <class T>
Status AttentionForwardOnHopper(const Stream& stream, std::string_view op,
                                const AttentionTensors<T>& a);
/// Heads of up to kHopperBackwardDim columns.
inline constexpr int kHopperBackwardDim = 128;
template <class T>
Status AttentionBackwardOnHopper(const Stream& stream, std::string_view op,
                                 const AttentionTensors<T>& a);

}  // namespace weft::kernels::cuda
