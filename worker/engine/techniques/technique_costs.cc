// All techniques for those who count without the engine: validation, planner, export.
#include "common/model/technique_cost.h"

namespace weft {

#define WEFT_MODEL_TECHNIQUE(folder, stem) const TechniqueCost& stem##TechniqueCost();
#define WEFT_TRAINING_TECHNIQUE(folder, stem) WEFT_MODEL_TECHNIQUE(folder, stem)
#include "worker/engine/techniques/registry.def"
#undef WEFT_MODEL_TECHNIQUE
#undef WEFT_TRAINING_TECHNIQUE

const std::vector<const TechniqueCost*>& TechniqueCosts() {
  static const std::vector<const TechniqueCost*> costs = {
#define WEFT_MODEL_TECHNIQUE(folder, stem) &stem##TechniqueCost(),
#define WEFT_TRAINING_TECHNIQUE(folder, stem) WEFT_MODEL_TECHNIQUE(folder, stem)
#include "worker/engine/techniques/registry.def"
#undef WEFT_MODEL_TECHNIQUE
#undef WEFT_TRAINING_TECHNIQUE
  };
  return costs;
}

}  // namespace weft
