#pragma once

#include "kernels/sparse24_decay/sparse24_decay.h"

namespace weft::kernels {

Status CheckMaskedDecay(const Stream& stream, const MaskedDecayArgs& args);
Status CheckMaskedDecay(const Stream& stream, const MaskedWeightDecayArgs& args);

}  // namespace weft::kernels
