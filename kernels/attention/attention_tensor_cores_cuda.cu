#include <string_view>

#include "kernels/attention/attention_cuda_backward.h"
#include "kernels/attention/attention_cuda_forward.h"
#include "kernels/attention/attention_cuda_tensor_cores.h"

namespace weft::kernels::cuda {
namespace {

// Calls fn.operator()<kDim>() with the columns of the tiles that hold a head.
template <class Fn>
Status WithTileDim(int head_dim, Fn&& fn) {
  if (head_dim <= 64) return fn.template operator()<64>();
  if (head_dim <= 96) return fn.template operator()<96>();
  if (head_dim <= 128) return fn.template operator()<128>();
  return fn.template operator()<256>();
}

}  // namespace

template <class T>
Status AttentionForwardOnTensorCores(const Stream& stream, std::string_view op,
                                     const AttentionTensors<T>& a) {
  return WithTileDim(a.head_dim, [&]<int kDim>() { return LaunchForward<T, kDim>(stream, op, a); });
}

template <class T>
Status AttentionBackwardOnTensorCores(const Stream& stream, std::string_view op,
                                      const AttentionTensors<T>& a) {
  return WithTileDim(a.head_dim, [&]<int kDim>() {
    WEFT_RETURN_IF_ERROR((LaunchKeyGradient<T, kDim>(stream, op, a)));
    return LaunchQueryGradient<T, kDim>(stream, op, a);
  });
}

template Status AttentionForwardOnTensorCores(const Stream& stream, std::string_view op,
                                              const AttentionTensors<BFloat16>& a);
template Status AttentionForwardOnTensorCores(const Stream& stream, std::string_view op,
                                              const AttentionTensors<Half>& a);
template Status AttentionBackwardOnTensorCores(const Stream& stream, std::string_view op,
                                               const AttentionTensors<BFloat16>& a);
template Status AttentionBackwardOnTensorCores(const Stream& stream, std::string_view op,
                                               const AttentionTensors<Half>& a);

}  // namespace weft::kernels::cuda
