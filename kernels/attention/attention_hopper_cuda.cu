#include <string_view>

#include "kernels/attention/attention_cuda_tensor_cores.h"
#include "kernels/attention/attention_hopper_backward.h"
#include "kernels/attention/attention_hopper_forward.h"

namespace weft::kernels::cuda {

template <class T>
Status AttentionForwardOnHopper(const Stream& stream, std::string_view op,
                                const AttentionTensors<T>& a) {
  return WithPanelDim(a.head_dim,
                      [&]<int kDim>() { return LaunchHopperForward<T, kDim>(stream, op, a); });
}

template <class T>
Status AttentionBackwardOnHopper(const Stream& stream, std::string_view op,
                                 const AttentionTensors<T>& a) {
  return a.head_dim <= 64 ? LaunchHopperBackward<T, 64>(stream, op, a)
                          : LaunchHopperBackward<T, kHopperBackwardDim>(stream, op, a);
}

template Status AttentionForwardOnHopper(const Stream& stream, std::string_view op,
                                         const AttentionTensors<BFloat16>& a);
template Status AttentionForwardOnHopper(const Stream& stream, std::string_view op,
                                         const AttentionTensors<Half>& a);
template Status AttentionBackwardOnHopper(const Stream& stream, std::string_view op,
                                          const AttentionTensors<BFloat16>& a);
template Status AttentionBackwardOnHopper(const Stream& stream, std::string_view op,
                                          const AttentionTensors<Half>& a);

}  // namespace weft::kernels::cuda
