#include "worker/trainer/sub_network.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "worker/engine/techniques/technique.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::trainer {

using engine::Parameter;
using engine::ParameterSet;

void SelectSubNetwork(const engine::Model& model) {
  for (const auto& technique : model.techniques()) technique->SelectSubNetwork(true);
}

Status TakeFirst(const ParameterSet& whole, ParameterSet& parameters) {
  for (int64_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    WEFT_ASSIGN_OR_RETURN(const int64_t from, whole.Find(parameter.name));
    const Shape &all = whole[from].shape, &kept = parameter.shape;
    const int64_t columns = all.Elements() / all[0], kept_columns = kept.Elements() / kept[0];
    if (all.rank != kept.rank || kept[0] > all[0] || kept_columns > columns) {
      return InvalidError(parameter.name + " " + kept.ToString() + " is no part of " +
                          all.ToString());
    }
    std::vector<float> values(static_cast<size_t>(all.Elements())), first;
    WEFT_RETURN_IF_ERROR(engine::Download(whole.stream(), whole.value(from), values.data()));
    first.reserve(static_cast<size_t>(kept.Elements()));
    for (int64_t row = 0; row < kept[0]; ++row) {
      const auto line = values.begin() + row * columns;
      first.insert(first.end(), line, line + kept_columns);
    }
    WEFT_RETURN_IF_ERROR(engine::Upload(parameters.stream(), first.data(), parameters.value(i)));
  }
  return OkStatus();
}

}  // namespace weft::trainer
