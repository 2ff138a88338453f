#pragma once

#include "kernels/optimizer/optimizer.h"

namespace weft::kernels {

/// What all back ends demand of the arguments.
Status CheckSgd(const Stream& stream, const SgdArgs& args);
Status CheckLars(const Stream& stream, const LarsArgs& args);
Status CheckAdam(const Stream& stream, const AdamArgs& args);
Status CheckLamb(const Stream& stream, const LambArgs& args);
Status CheckLion(const Stream& stream, const LionArgs& args);
Status CheckScheduleFreeAdamW(const Stream& stream, const ScheduleFreeArgs& args);
Status CheckMomentum(const Stream& stream, const MomentumArgs& args);

}  // namespace weft::kernels
