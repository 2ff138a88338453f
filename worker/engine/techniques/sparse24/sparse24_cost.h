#pragma once

#include <cstdint>
#include <string_view>

#include "common/model/parameter_info.h"
#include "common/spec/train_spec.h"

namespace weft {

/// Name of its metric, with the unit.
inline constexpr std::string_view kFlipRateMetric = "sparse24_flip_rate_ratio";

/// Prefix of the names of masks in checkpoints, before that of the parameter.
inline constexpr const char* kSparse24Masks = "sparse24/mask/";
/// The same of the scales of s_ste.
inline constexpr const char* kSparse24Scales = "sparse24/scale/";

/// Prefix of the names of its measured products (GemmRate::precision).
inline constexpr std::string_view kSparse24Rates = "sparse24_";

/// Whether products with weights are sparse in some step.
inline bool HasSparseProducts(const SparsitySpec& spec) {
  return spec.method != "none" && spec.method != "measure";
}

/// The first step of those that train dense.
int64_t FirstDenseStep(const TrainSpec& train);

/// Steps between two searches for masks; 0: there is one.
inline int64_t StepsOfMasks(const SparsitySpec& spec) {
  if (spec.method == "static") return 0;
  return spec.method == "s_ste" ? 1 : spec.mask_interval;
}

/// Whether masks keep two of four in rows alone.
inline bool HasRowMasks(const SparsitySpec& spec) {
  return spec.method == "sr_ste" || spec.method == "s_ste";
}

/// A weight that training can have 2:4 sparse: that of an MLP, not of an expert.
inline bool CanBeSparse24(const ParameterAttributes& parameter) {
  return IsMlp(parameter.role) && !parameter.bias && parameter.expert < 0 && !parameter.frozen;
}

}  // namespace weft
