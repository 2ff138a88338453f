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

/// Prefix of the names of its measured products (GemmRate::precision).
inline constexpr std::string_view kSparse24Rates = "sparse24_";

/// Whether products with weights are sparse in some step.
inline bool HasSparseProducts(const SparsitySpec& spec) {
  return spec.method != "none" && spec.method != "measure";
}

/// The first step of those that train dense.
int64_t FirstDenseStep(const TrainSpec& train);

/// Whether masks are searched again when they have been in use for SparsitySpec::mask_interval.
inline bool RenewsMasks(const SparsitySpec& spec) {
  return spec.method != "static";
}

/// A weight that training can have 2:4 sparse: that of an MLP, not of an expert.
inline bool CanBeSparse24(const ParameterAttributes& parameter) {
  return IsMlp(parameter.role) && !parameter.bias && parameter.expert < 0 && !parameter.frozen;
}

}  // namespace weft
