#pragma once

#include <cstdint>
#include <vector>

namespace weft::engine {

/// Rows of a frozen table of tokens whose values are those of another parameter, which is trained.
struct TrainedTableRows {
  /// Some that follow each other in both.
  struct Run {
    int64_t first = 0;  ///< The first of them in the table,
    int64_t row = 0;    ///< and in the parameter.
    int64_t count = 0;
  };

  int64_t parameter = -1;  ///< Its index: [rows, width].
  std::vector<Run> runs;   ///< All rows of the parameter that are in the part of the table here.
};

}  // namespace weft::engine
