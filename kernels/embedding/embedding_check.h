#pragma once

#include "kernels/embedding/embedding.h"

namespace weft::kernels {

/// What all back ends demand of the arguments; not the indices themselves.
Status CheckEmbeddingForward(const Stream& stream, const EmbeddingForwardArgs& args);
Status CheckEmbeddingBackward(const Stream& stream, const EmbeddingBackwardArgs& args);

}  // namespace weft::kernels
