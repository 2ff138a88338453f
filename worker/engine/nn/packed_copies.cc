#include "worker/engine/nn/packed_copies.h"

#include <algorithm>
#include <utility>

namespace weft::engine {

Result<PackedCopy> PackedCopies::Take(Context& context, int64_t out, int64_t in, DType compute) {
  const auto it = std::find_if(spare_.begin(), spare_.end(), [&](const PackedCopy& copy) {
    return copy.weight->out_features() == out && copy.weight->in_features() == in &&
           copy.weight->compute() == compute;
  });
  PackedCopy copy;
  if (it != spare_.end()) {
    copy = std::move(*it);
    spare_.erase(it);
    return copy;
  }
  WEFT_ASSIGN_OR_RETURN(copy.weight,
                        kernels::NewPackedWeight(context.stream.device, out, in, compute));
  return copy;
}

}  // namespace weft::engine
