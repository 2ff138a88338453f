#pragma once

#include "kernels/attention/attention.h"

namespace weft::kernels {

/// What all back ends demand of the arguments, except the values of sequence_starts.
Status CheckAttentionForward(const Stream& stream, const AttentionForwardArgs& args);
Status CheckAttentionBackward(const Stream& stream, const AttentionBackwardArgs& args);
/// What they all draw.
AttentionDraw DrawOf(const AttentionDropout& dropout);

}  // namespace weft::kernels
