#pragma once

#include <string>

#include "common/spec/model_spec.h"
#include "common/status.h"

namespace weft {

/// "causal_lm", "masked_lm" or "classification": model.head with auto resolved.
inline std::string HeadOf(const ModelSpec& model) {
  if (model.head != "auto") return model.head;
  if (model.family == "bert") return "masked_lm";
  return model.family == "vit" ? "classification" : "causal_lm";
}

/// "pre", "post" or "none": model.norm_position with auto resolved.
inline std::string NormPositionOf(const ModelSpec& model) {
  if (model.norm_position != "auto") return model.norm_position;
  return model.family == "bert" ? "post" : "pre";
}

/// Whether the family has what `model` asks for. kInvalid names the field and what would do.
Status CheckFamily(const ModelSpec& model);

}  // namespace weft
