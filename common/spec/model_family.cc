#include "common/spec/model_family.h"

#include <string>
#include <utility>

namespace weft {
namespace {

Status CheckHead(const ModelSpec& model) {
  const std::string head = HeadOf(model);
  const bool bert = model.family == "bert", vit = model.family == "vit";
  const char* heads = bert ? "masked_lm or classification" : vit ? "classification" : "causal_lm";
  if (bert ? head != "causal_lm" : head == heads) return OkStatus();
  return InvalidError("model.head " + head + " is not available with model.family " + model.family +
                      "; hint: " + heads);
}

Status CheckExperts(const ModelSpec& model) {
  const std::string named = "model.experts " + std::to_string(model.experts);
  if (model.experts == 0) {
    for (const auto& [asked, field] :
         {std::pair{model.expert_capacity != 0, "model.expert_capacity"},
          {!model.normalize_expert_weights, "model.normalize_expert_weights false"}}) {
      if (asked) {
        return InvalidError(std::string(field) + " needs model.experts; hint: model.experts: 8");
      }
    }
    return OkStatus();
  }
  if (model.family != "llama") {
    return InvalidError(named + " is for model.family llama, not " + model.family);
  }
  if (model.experts_per_token > model.experts) {
    return InvalidError("model.experts_per_token " + std::to_string(model.experts_per_token) +
                        " is more than model.experts " + std::to_string(model.experts));
  }
  if (InitializationChangesNetwork(model)) {
    return InvalidError(named + " does not go with model.initialization.method " +
                        model.initialization.method + "; hint: auto");
  }
  if (model.over_parameterization.kind != "none") {
    return InvalidError(named + " does not go with model.over_parameterization; hint: none");
  }
  return OkStatus();
}

}  // namespace

Status CheckFamily(const ModelSpec& model) {
  const std::string& family = model.family;
  const struct {
    bool asked;
    const char* field;
  } of_llama[] = {
      {model.kv_heads != 0 && model.kv_heads != model.heads, "model.kv_heads"},
      {model.rope_scaling.kind != "none", "model.rope_scaling"},
      {model.sliding_window != 0, "model.sliding_window"},
      {model.qkv_bias, "model.qkv_bias"},
  };
  for (const auto& [asked, field] : of_llama) {
    if (asked && family != "llama") {
      return InvalidError(std::string(field) + " is for model.family llama, not " + family);
    }
  }
  WEFT_RETURN_IF_ERROR(CheckExperts(model));
  WEFT_RETURN_IF_ERROR(CheckHead(model));
  const bool bert = family == "bert", vit = family == "vit";
  if (!bert && !vit) return OkStatus();
  if (InitializationChangesNetwork(model)) {
    return InvalidError("model.initialization.method " + model.initialization.method +
                        " is not available with model.family " + family);
  }
  if (NormPositionOf(model) != (bert ? "post" : "pre")) {
    return InvalidError("model.norm_position " + model.norm_position +
                        " is not available with model.family " + family);
  }
  if (model.embedding_width > 0) {
    return InvalidError("model.embedding_width is not available with model.family " + family);
  }
  if (vit && model.image_size % model.patch_size != 0) {
    return InvalidError("model.image_size " + std::to_string(model.image_size) +
                        " must be a multiple of model.patch_size " +
                        std::to_string(model.patch_size));
  }
  return OkStatus();
}

}  // namespace weft
