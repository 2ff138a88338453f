#include "worker/engine/comm/sum_scalars.h"

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace weft::engine {

Status SumScalars(Collective& group, std::span<double> values) {
  const std::string_view own(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> all, group.AllGather(own));
  std::vector<double> sums(values.size(), 0.0);
  for (const std::string& part : all) {
    if (part.size() != values.size_bytes()) {
      return InternalError(
          "ranks sum different numbers of values: " + std::to_string(part.size() / sizeof(double)) +
          " and " + std::to_string(values.size()));
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      double value = 0;
      std::memcpy(&value, part.data() + i * sizeof(double), sizeof(double));
      sums[i] += value;
    }
  }
  std::memcpy(values.data(), sums.data(), values.size_bytes());
  return OkStatus();
}

}  // namespace weft::engine
