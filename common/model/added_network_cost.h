#pragma once

#include <cstdint>
#include <optional>

#include "common/model/memory_model.h"
#include "common/model/model_shape.h"
#include "common/spec/job_spec.h"

namespace weft {

/// The shape of the network whose logits are added to those of the model (AddedNetworkOf). It is
/// whole on each rank; tensor-parallel ranks compute the logits of their part of the vocabulary.
/// None: there is none.
std::optional<ModelShape> AddedNetworkShape(const TrainSpec& train);

/// Bytes of such a network on a rank; all 0 without one.
struct AddedNetworkBytes {
  int64_t parameters = 0;  ///< With packed copies,
  int64_t packed = 0;      ///< which are these.
  int64_t pass = 0;        ///< Peak of its forward pass, which runs before that of the model.
  int64_t hidden = 0;      ///< Input of its classifier, which stays until the loss is known.
};

AddedNetworkBytes AddedNetworkBytesOf(const MemoryInputs& inputs);

/// FLOPs of its forward pass for each token, once however many ranks repeat it; 0 without one.
double AddedNetworkFlopsPerToken(const TrainSpec& train, int64_t sequence_length);

}  // namespace weft
