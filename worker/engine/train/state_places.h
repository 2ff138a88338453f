#pragma once

#include <cstddef>
#include <vector>

#include "worker/engine/tensor/named_tensor.h"
#include "worker/engine/train/trainer_parts.h"

namespace weft::engine {

/// Says of each tensor of the training state which part of a whole one it is (NamedTensor::part)
/// and which of the ranks that have the same saves it. The first `of_all` tensors are those of all
/// replicas of the model, the others of this worker alone.
void MarkPlaces(const TrainerParts& parts, std::vector<NamedTensor>& tensors, size_t of_all);

}  // namespace weft::engine
