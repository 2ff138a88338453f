#include "kernels/attention/attention_backward.h"
#include "kernels/attention/attention_forward.h"

namespace weft::kernels::cpu::WEFT_ISA {

const AttentionTables kAttentionTables = {
    .f32 = {ForwardScratchSize<F32Math>, AttentionForwardItem<F32Math, float>,
            BackwardScratchSize<F32Math>, AttentionBackwardItem<F32Math, float>},
    .bf16 = {ForwardScratchSize<F32Math>, AttentionForwardItem<F32Math, BFloat16>,
             BackwardScratchSize<F32Math>, AttentionBackwardItem<F32Math, BFloat16>},
};

}  // namespace weft::kernels::cpu::WEFT_ISA
