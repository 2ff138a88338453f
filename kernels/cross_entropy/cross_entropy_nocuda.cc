#include "kernels/cross_entropy/cross_entropy.h"

WEFT_NO_CUDA_OP(CrossEntropy, CrossEntropyArgs)
WEFT_NO_CUDA_OP(MeasureLogitsPart, MeasureLogitsPartArgs)
WEFT_NO_CUDA_OP(CrossEntropyOfParts, CrossEntropyOfPartsArgs)
