#include "worker/engine/techniques/registry.h"

#include <utility>

namespace weft::engine {

#define WEFT_MODEL_TECHNIQUE(folder, stem) \
  std::unique_ptr<Technique> New##stem(const TechniqueInputs& inputs);
#define WEFT_TRAINING_TECHNIQUE(folder, stem) WEFT_MODEL_TECHNIQUE(folder, stem)
#include "worker/engine/techniques/registry.def"
#undef WEFT_MODEL_TECHNIQUE
#undef WEFT_TRAINING_TECHNIQUE

namespace {

using NewTechnique = std::unique_ptr<Technique> (*)(const TechniqueInputs&);

struct Entry {
  bool of_model = false;
  NewTechnique make = nullptr;
};

constexpr Entry kTechniques[] = {
#define WEFT_MODEL_TECHNIQUE(folder, stem) {true, New##stem},
#define WEFT_TRAINING_TECHNIQUE(folder, stem) {false, New##stem},
#include "worker/engine/techniques/registry.def"
#undef WEFT_MODEL_TECHNIQUE
#undef WEFT_TRAINING_TECHNIQUE
};

std::vector<std::unique_ptr<Technique>> Make(const TechniqueInputs& inputs, bool of_model) {
  std::vector<std::unique_ptr<Technique>> techniques;
  for (const Entry& entry : kTechniques) {
    if (entry.of_model != of_model) continue;
    if (std::unique_ptr<Technique> made = entry.make(inputs)) techniques.push_back(std::move(made));
  }
  return techniques;
}

}  // namespace

std::vector<std::unique_ptr<Technique>> ModelTechniques(const TechniqueInputs& inputs) {
  return Make(inputs, true);
}

std::vector<std::unique_ptr<Technique>> TrainingTechniques(const TechniqueInputs& inputs) {
  return Make(inputs, false);
}

}  // namespace weft::engine
