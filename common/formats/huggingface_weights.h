#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/formats/huggingface.h"
#include "common/formats/safetensors.h"
#include "common/status.h"

namespace weft {

// What reading and writing of weights share.

/// Extents of a weight as files have it.
std::vector<uint64_t> FileShape(const HuggingFaceTensor& tensor);

/// Elements of a weight.
uint64_t ElementCount(const HuggingFaceTensor& tensor);

/// Whether weights of this type can be read: F32, BF16 and F16.
bool IsReadable(SafetensorsType type);

/// Reads elements [first, first + out.size()) of such a tensor as floats.
void ReadFloats(const SafetensorsView& view, uint64_t first, std::span<float> out);

/// Hands floats to a file as F32, BF16 or F16; `name` is that of their tensor. kInvalid when one is
/// past the range of the type.
Status WriteFloats(SafetensorsType type, const std::string& name, std::span<const float> values,
                   const ByteSink& sink);

inline constexpr char kOutputProjection[] = "lm_head.weight";

// A bert of masked tokens whose classifier is untied computes with the first of these biases in
// transformers 5, and with one bias under both names in 4.
inline constexpr char kDecoderWeight[] = "cls.predictions.decoder.weight";
inline constexpr char kDecoderBias[] = "cls.predictions.decoder.bias";
inline constexpr char kPredictionBias[] = "cls.predictions.bias";

}  // namespace weft
