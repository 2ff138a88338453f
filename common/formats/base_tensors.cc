#include "common/formats/base_tensors.h"

#include <set>

#include "common/model/parameter_list.h"
#include "common/model/technique_cost.h"

namespace weft {

std::vector<std::string> BaseTensors(const ModelSpec& model, HeadWeights head) {
  std::vector<std::string> names;
  if (!LeavesOutBase(model)) return names;
  std::set<std::string> in_files;
  for (const HuggingFaceTensor& tensor : HuggingFaceTensors(model)) {
    in_files.insert(tensor.parameter);
  }
  for (const ParameterInfo& parameter : ParametersOf(model)) {
    const bool imported = in_files.contains(parameter.name) &&
                          (head == HeadWeights::kFromFile || !IsHead(parameter.role));
    if (parameter.frozen && imported) names.push_back(parameter.name);
  }
  return names;
}

}  // namespace weft
