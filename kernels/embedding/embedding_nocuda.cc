#include "kernels/embedding/embedding.h"

WEFT_NO_CUDA_OP(EmbeddingForward, EmbeddingForwardArgs)
WEFT_NO_CUDA_OP(EmbeddingBackward, EmbeddingBackwardArgs)
