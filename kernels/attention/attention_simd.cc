#include "kernels/attention/attention_backward.h"
#include "kernels/attention/attention_forward.h"

namespace weft::kernels::cpu::WEFT_ISA {

template <class T>
constexpr AttentionTable kTableOf = {ForwardScratchSize<F32Math>, AttentionForwardItem<F32Math, T>,
                                     BackwardScratchSize<F32Math>,
                                     AttentionBackwardItem<F32Math, T>};

const AttentionTables kAttentionTables = {
    .f32 = kTableOf<float>,
    .bf16 = kTableOf<BFloat16>,
    .f16 = kTableOf<Half>,
};

}  // namespace weft::kernels::cpu::WEFT_ISA
