#include "common/model/state_tensors.h"

#include <initializer_list>
#include <string>

namespace weft {

bool UpdatedByMuon(const ParameterAttributes& parameter, size_t rank) {
  return rank == 2 && parameter.block >= 0;
}

std::vector<StateTensor> StateTensorsOf(const OptimizerSpec& optimizer,
                                        const ParameterAttributes& parameter,
                                        const std::vector<int64_t>& shape) {
  const auto like_it = [&](std::initializer_list<std::string_view> names) {
    std::vector<StateTensor> tensors;
    for (const std::string_view name : names) tensors.push_back({name, shape});
    return tensors;
  };
  const std::string& name = optimizer.name;
  if (name == "sgd" && optimizer.momentum == 0) return {};
  if (name == "sgd" || name == "lars" || name == "lion") return like_it({"momentum"});
  if (name == "muon" && UpdatedByMuon(parameter, shape.size())) return like_it({"momentum"});
  if (name == "schedule_free_adamw") return like_it({"average", "base", "second_moment"});
  if (name == "adafactor") {
    if (shape.size() < 2) return like_it({"second_moment"});
    return {{"row_moment", {shape[0]}}, {"column_moment", {shape[1]}}};
  }
  return like_it({"first_moment", "second_moment"});
}

}  // namespace weft
