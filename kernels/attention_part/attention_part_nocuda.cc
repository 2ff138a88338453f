#include "kernels/attention_part/attention_part.h"

WEFT_NO_CUDA_OP(AttendPart, AttendPartArgs)
WEFT_NO_CUDA_OP(AttendPartBackward, AttendPartBackwardArgs)
