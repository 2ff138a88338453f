#pragma once

#include "kernels/step_totals/step_totals.h"

namespace weft::kernels {

/// What all back ends demand of the arguments.
Status CheckAddLosses(const Stream& stream, const AddLossesArgs& args);
Status CheckDecideUpdate(const Stream& stream, const DecideUpdateArgs& args);

}  // namespace weft::kernels
