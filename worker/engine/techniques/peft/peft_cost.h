#pragma once

#include "common/spec/model_spec.h"

namespace weft {

/// Whether model.peft trains anything.
inline bool AsksForPeft(const ModelSpec& model) {
  return model.peft.method != "none";
}

}  // namespace weft
