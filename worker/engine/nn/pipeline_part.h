#pragma once

#include <cstdint>
#include <vector>

namespace weft::engine {

/// The stages of a pipeline that a rank has: blocks, before those of the first stage the embedding,
/// after those of the last one the classifier.
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
