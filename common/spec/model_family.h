#pragma once

#include <cstdint>
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

/// model.initialization.method with auto resolved.
inline std::string InitializationOf(const ModelSpec& model) {
  if (model.initialization.method != "auto") return model.initialization.method;
  if (model.family == "bert") return "normal";
  return model.family == "vit" ? "truncated_normal" : "gpt2";
}

/// What trained numbers a residual branch is multiplied by.
enum class BranchScaling : uint8_t {
  kNone,
  kScalar,
  kVector,
  kFixup,  ///< A scalar, with a scalar added before the branch and one after it.
};

inline BranchScaling BranchScalingOf(const ModelSpec& model) {
  const std::string method = InitializationOf(model);
  if (method == "rezero" || method == "skipinit") return BranchScaling::kScalar;
  if (method == "layer_scale") return BranchScaling::kVector;
  return method == "fixup" ? BranchScaling::kFixup : BranchScaling::kNone;
}

/// "pre", "post" or "none": model.norm_position with auto resolved.
inline std::string NormPositionOf(const ModelSpec& model) {
  if (model.norm_position != "auto") return model.norm_position;
  const std::string method = InitializationOf(model);
  if (method == "fixup" || method == "t_fixup" || method == "rezero") return "none";
  return model.family == "bert" ? "post" : "pre";
}

/// Whether model.initialization.method changes the network, not its first weights alone.
inline bool InitializationChangesNetwork(const ModelSpec& model) {
  const std::string method = InitializationOf(model);
  return BranchScalingOf(model) != BranchScaling::kNone || method == "t_fixup" || method == "mup";
}

/// Whether the family has what `model` asks for, by compatibility.h. kInvalid says what would do.
Status CheckFamily(const ModelSpec& model);

}  // namespace weft
