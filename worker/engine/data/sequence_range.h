#pragma once

#include <cstdint>

namespace weft::engine {

/// Successive sequences.
struct SequenceRange {
  int64_t first = 0;
  int64_t count = 0;
  bool operator==(const SequenceRange&) const = default;
};

}  // namespace weft::engine
