#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "common/dtype.h"
#include "common/model/moment_kind.h"
#include "common/model/parameter_info.h"
#include "common/spec/job_spec.h"

namespace weft {

/// How the numbers of a state tensor are kept.
struct StateFormat {
  DType dtype = DType::kF32;
  int64_t scale_block = 0;  ///< Successive numbers that share an f32 scale; 0: none have one.

  bool operator==(const StateFormat&) const = default;

  /// The number of scales that `numbers` numbers have.
  int64_t Scales(int64_t numbers) const {
    return scale_block == 0 ? 0 : (numbers + scale_block - 1) / scale_block;
  }
  /// Bytes of `numbers` numbers with their scales.
  int64_t Bytes(int64_t numbers) const {
    return static_cast<int64_t>(DTypeSize(dtype)) * numbers +
           static_cast<int64_t>(sizeof(float)) * Scales(numbers);
  }
};

/// What an optimizer keeps of a parameter between updates.
struct StateTensor {
  std::string_view name;  ///< As in checkpoints: "first_moment".
  std::vector<int64_t> shape;
  MomentKind moment = MomentKind::kNone;
  StateFormat format = {};

  int64_t Numbers() const {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    return count;
  }
};

/// Whether Muon's own rule is for such a parameter: a matrix of a block. Its AdamW has the others.
bool UpdatedByMuon(const ParameterAttributes& parameter, size_t rank);

/// The optimizer that keeps nothing between updates.
OptimizerSpec StatelessOptimizer();

/// The state tensors of a parameter of this shape, in the order in which the kernel of the rule
/// names them.
std::vector<StateTensor> StateTensorsOf(const OptimizerSpec& optimizer,
                                        const ParameterAttributes& parameter,
                                        const std::vector<int64_t>& shape);

}  // namespace weft
