#pragma once

#include <string>
#include <vector>

#include "common/formats/huggingface.h"
#include "common/spec/model_spec.h"

namespace weft {

/// The parameters that checkpoints of a training of `model` leave out (LeavesOutBase): frozen
/// weights that have come from the files of model.import_path, `head` as they were read. None where
/// checkpoints hold everything.
std::vector<std::string> BaseTensors(const ModelSpec& model, HeadWeights head);

}  // namespace weft
