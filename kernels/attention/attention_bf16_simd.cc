#include "kernels/attention/attention_backward.h"
#include "kernels/attention/attention_bf16_math.h"
#include "kernels/attention/attention_forward.h"

namespace weft::kernels::cpu::WEFT_ISA {

template <class Math>
constexpr AttentionTable kTableOf = {ForwardScratchSize<Math>, AttentionForwardItem<Math, BFloat16>,
                                     BackwardScratchSize<Math>,
                                     AttentionBackwardItem<Math, BFloat16>};

const AttentionTable kAttentionDotTable = kTableOf<Bf16DotMath>;
const AttentionTable kAttentionTileTable = kTableOf<Bf16TileMath>;

}  // namespace weft::kernels::cpu::WEFT_ISA
