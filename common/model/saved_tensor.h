#pragma once

#include <cstdint>

namespace weft {

/// A tensor that a block saves in its forward pass, in the order of the pass (BlockSavedTensors).
/// Names with a 1 are of attention, names with a 2 of the MLP or of a mixture of experts.
enum class SavedTensor : uint8_t {
  kResidual1,  ///< The stream that the sub-layer reads.
  kNorm1Statistics,
  kNorm1,  ///< Its norm.
  kQueriesKeysValues,
  kAttention,
  kLogSumExp,
  kAttentionGrafts,
  kBranch1,  ///< The result of the sub-layer, which its scale multiplies.
  kResidual2,
  kNorm2Statistics,
  kNorm2,
  kRoute,
  kExpertInputs,
  kExpertsBeforeActivation,
  kExpertResults,
  kMlpBeforeActivation,
  kMlpGrafts,
  kBranch2,
};

}  // namespace weft
