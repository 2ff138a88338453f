#pragma once

#include <cstdint>
#include <vector>

namespace weft::engine {

/// The pipeline stages of a rank: blocks, with the embedding before those of the first stage and
/// the classifier after those of the last one.
struct PipelinePart {
  struct Stage {
    int64_t first_block = 0;
    int64_t blocks = 0;
  };
  std::vector<Stage> stages;  ///< In the order of the pipeline.
  bool first = false;         ///< stages.front() is the pipeline's first one ...
  bool last = false;          ///< ... and stages.back() its last one.
};

}  // namespace weft::engine
