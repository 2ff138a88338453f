#include "kernels/norm_part/norm_part.h"

WEFT_NO_CUDA_OP(MeasureNormPart, MeasureNormPartArgs)
WEFT_NO_CUDA_OP(NormOfParts, NormOfPartsArgs)
WEFT_NO_CUDA_OP(MeasureNormGradientPart, MeasureNormGradientPartArgs)
WEFT_NO_CUDA_OP(NormGradientOfParts, NormGradientOfPartsArgs)
