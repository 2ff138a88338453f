// What config.json says of the objective of training: dropout, and the loss of load balancing.
#include <optional>
#include <string>

#include "common/formats/huggingface_config.h"

namespace weft {
namespace {

/// Takes the number of `key`, or what transformers assumes without one, unless the job has said it.
Status Take(const Json& config, const char* key, double assumed, std::optional<double>& out) {
  if (out) return OkStatus();
  WEFT_RETURN_IF_ERROR(ReadNumber(config, key, assumed));
  out = assumed;
  return OkStatus();
}

/// Model.dropout, which is of two places that the file tells apart.
Status TakeBoth(const Json& config, const char* key, const char* other_key, double assumed,
                std::optional<double>& out) {
  if (out) return OkStatus();
  WEFT_RETURN_IF_ERROR(Take(config, key, assumed, out));
  std::optional<double> other;
  WEFT_RETURN_IF_ERROR(Take(config, other_key, assumed, other));
  if (*other == *out) return OkStatus();
  return InvalidError(std::string(key) + " in config.json is " + Json(*out).dump() + " and " +
                      other_key + " is " + Json(*other).dump() +
                      ", and both are model.dropout; hint: give model.dropout in the job");
}

}  // namespace

Status TakeObjective(const Json& config, ModelSpec& model) {
  if (model.family == "gpt2") {
    WEFT_RETURN_IF_ERROR(TakeBoth(config, "resid_pdrop", "embd_pdrop", 0.1, model.dropout));
    return Take(config, "attn_pdrop", 0.1, model.attention_dropout);
  }
  if (model.family == "llama") {
    WEFT_RETURN_IF_ERROR(Take(config, "attention_dropout", 0, model.attention_dropout));
    if (model.experts == 0) return OkStatus();
    return Take(config, "router_aux_loss_coef", 0.001, model.router_aux_loss);
  }
  const double assumed = model.family == "bert" ? 0.1 : 0;
  const bool pooled = model.family == "bert" && model.head == "classification" &&
                      config.contains("classifier_dropout") &&
                      !config["classifier_dropout"].is_null();
  WEFT_RETURN_IF_ERROR(TakeBoth(config, "hidden_dropout_prob",
                                pooled ? "classifier_dropout" : "hidden_dropout_prob", assumed,
                                model.dropout));
  return Take(config, "attention_probs_dropout_prob", assumed, model.attention_dropout);
}

}  // namespace weft
