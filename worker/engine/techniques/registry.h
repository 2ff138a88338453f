#pragma once

#include <memory>
#include <vector>

#include "worker/engine/techniques/technique.h"

namespace weft::engine {

/// The techniques that `inputs` ask for and that are part of a model, in the order of registry.def.
std::vector<std::unique_ptr<Technique>> ModelTechniques(const TechniqueInputs& inputs);

/// The same of those that are part of the training alone.
std::vector<std::unique_ptr<Technique>> TrainingTechniques(const TechniqueInputs& inputs);

}  // namespace weft::engine
