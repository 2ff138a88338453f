#pragma once

#include <cstdint>
#include <vector>

#include "common/formats/huggingface.h"

namespace weft {

// What reading and writing of weights share.

/// Extents of a weight as files have it.
std::vector<uint64_t> FileShape(const HuggingFaceTensor& tensor);

/// Elements of a weight.
uint64_t ElementCount(const HuggingFaceTensor& tensor);

inline constexpr char kOutputProjection[] = "lm_head.weight";

// A bert of masked tokens whose classifier is untied computes with the first of these biases in
// transformers 5, and with one bias under both names in 4.
inline constexpr char kDecoderWeight[] = "cls.predictions.decoder.weight";
inline constexpr char kDecoderBias[] = "cls.predictions.decoder.bias";
inline constexpr char kPredictionBias[] = "cls.predictions.bias";

}  // namespace weft
