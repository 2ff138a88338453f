#pragma once

#include <cstdint>
#include <vector>

#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/tensor/named_tensor.h"

namespace weft::engine {

/// The tensors that checkpoints have for the words of quantised parameter `index`: `<name>` (u8,
/// two codes a byte), `<name>.scales` (u8 codes or f32), and with double quantisation
/// `<name>.scales_of_scales` and `<name>.mean_scale` (f32). Where each row of the weight has whole
/// blocks the first two are [out, ...] matrices, which are cut with it, and else vectors. Views of
/// what this rank holds.
std::vector<NamedTensor> WordTensors(const ParameterSet& parameters, int64_t index);

}  // namespace weft::engine
