#pragma once

#include <cstdint>

#include "common/spec/data_spec.h"

namespace weft {

/// Whether rows are padded to the longest of their micro-batch, not to one length.
inline bool PadsToTheLongest(const DataSpec& data) {
  return data.batching == "pad_dynamic" || data.batching == "pad_uniform";
}

/// The length of the longest is then rounded up to a multiple of this, in tokens, and at most the
/// sequence length. Keeps the number of different shapes small.
inline constexpr int64_t kPaddedLengthMultiple = 8;

}  // namespace weft
