// config.json of the families that see a whole sequence at once: bert and vit.
#include "common/formats/huggingface_config.h"
#include "common/model/model_sizes.h"
#include "common/text.h"

namespace weft {
namespace {

Status ReadActivation(const Json& config, ModelSpec& model) {
  model.activation = "auto";
  auto it = config.find("hidden_act");
  if (it == config.end() || *it == "gelu") return OkStatus();
  const bool vit = model.family == "vit";
  if (vit && *it == "relu2") {
    model.activation = "squared_relu";
    return OkStatus();
  }
  return InvalidError("hidden_act in config.json is " + it->dump() + "; only \"gelu\"" +
                      (vit ? " and \"relu2\" are computed" : " is computed"));
}

/// What both families call the same.
Status ReadSizes(const Json& config, ModelSpec& model) {
  model.kv_heads = 0;
  model.embedding_width = 0;
  model.norm_position = "auto";
  model.norm_epsilon = 1e-12;
  WEFT_RETURN_IF_ERROR(ReadActivation(config, model));
  WEFT_RETURN_IF_ERROR(ReadSize(config, "num_hidden_layers", model.layers));
  WEFT_RETURN_IF_ERROR(ReadSize(config, "hidden_size", model.width));
  WEFT_RETURN_IF_ERROR(ReadSize(config, "num_attention_heads", model.heads));
  WEFT_RETURN_IF_ERROR(ReadSize(config, "intermediate_size", model.mlp_width));
  return ReadNumber(config, "layer_norm_eps", model.norm_epsilon);
}

/// transformers leaves out the labels when there are two, its default.
Status ReadClasses(const Json& config, ImportedHead& head) {
  if (const Json* type = Find(config, "problem_type");
      type != nullptr && *type != "single_label_classification") {
    return InvalidError("problem_type in config.json is " + ClipText(type->dump()) +
                        "; only \"single_label_classification\" is trained");
  }
  head.classes = 2;
  auto it = config.find("id2label");
  if (it == config.end() || it->is_null()) {
    return config.contains("num_labels") ? ReadSize(config, "num_labels", head.classes)
                                         : OkStatus();
  }
  if (!it->is_object() || it->empty()) {
    return InvalidError("id2label in config.json must name the classes, not " +
                        ClipText(it->dump()));
  }
  head.classes = static_cast<int64_t>(it->size());
  bool own_names = false;
  for (int64_t i = 0; i < head.classes; ++i) {
    auto name = it->find(std::to_string(i));
    if (name == it->end() || !name->is_string()) {
      return InvalidError("id2label in config.json has no name for class " + std::to_string(i) +
                          " of " + std::to_string(head.classes));
    }
    head.class_names.push_back(name->get<std::string>());
    own_names = own_names || head.class_names.back() != "LABEL_" + std::to_string(i);
  }
  if (!own_names) head.class_names.clear();
  return OkStatus();
}

/// The head that the job asks for, that of the file when it asks for none.
Status TakeHead(const Json& config, const ModelSpec& base, ModelSpec& model) {
  WEFT_ASSIGN_OR_RETURN(const ImportedHead head, HeadOfConfig(config));
  model.head = base.head == "auto" ? head.head : base.head;
  if (model.head.empty() && model.family == "vit") model.head = "classification";
  if (model.head.empty() || (model.head == "masked_lm" && head.head != "masked_lm")) {
    return InvalidError("architectures in config.json is " + config.at("architectures").dump() +
                        ", without a head for masked tokens; hint: model.head classification "
                        "starts a new one");
  }
  if (model.head == "classification" && base.classes == 0) model.classes = head.classes;
  return OkStatus();
}

void WriteSizes(const ModelSpec& model, Json& config) {
  config["hidden_act"] = model.activation == "squared_relu" ? "relu2" : "gelu";
  config["num_hidden_layers"] = model.layers;
  config["hidden_size"] = model.width;
  config["num_attention_heads"] = model.heads;
  config["intermediate_size"] = MlpWidth(model);
  config["layer_norm_eps"] = model.norm_epsilon;
  config["hidden_dropout_prob"] = DropoutOf(model);
  config["attention_probs_dropout_prob"] = AttentionDropoutOf(model);
}

void WriteClasses(const ModelSpec& model, const std::vector<std::string>& classes, Json& config) {
  Json names = Json::object(), numbers = Json::object();
  for (int64_t i = 0; i < model.classes; ++i) {
    const auto index = static_cast<size_t>(i);
    const std::string name = index < classes.size() ? classes[index] : "LABEL_" + std::to_string(i);
    names[std::to_string(i)] = name;
    numbers[name] = i;
  }
  config["id2label"] = names;
  config["label2id"] = numbers;
}

}  // namespace

Result<ImportedHead> HeadOfConfig(const Json& config) {
  ImportedHead head;
  auto type = config.find("model_type");
  if (type == config.end() || (*type != "bert" && *type != "vit")) {
    head.head = "causal_lm";
    return head;
  }
  auto it = config.find("architectures");
  const bool vit = *type == "vit";
  const Json name = it != config.end() && it->is_array() && it->size() == 1 ? it->front() : Json();
  if (name == (vit ? "ViTModel" : "BertModel")) return head;
  if (!vit && (name == "BertForMaskedLM" || name == "BertForPreTraining")) {
    head.head = "masked_lm";
    return head;
  }
  if (name != (vit ? "ViTForImageClassification" : "BertForSequenceClassification")) {
    const std::string known =
        vit ? "ViTForImageClassification and ViTModel"
            : "BertForMaskedLM, BertForPreTraining, BertForSequenceClassification and BertModel";
    return InvalidError("architectures in config.json is " +
                        (it == config.end() ? "absent" : ClipText(it->dump())) +
                        "; of model_type " + type->get<std::string>() + ", " + known +
                        " can be imported");
  }
  head.head = "classification";
  WEFT_RETURN_IF_ERROR(ReadClasses(config, head));
  return head;
}

Result<ModelSpec> BertFromConfig(const Json& config, const ModelSpec& base) {
  ModelSpec model = base;
  model.family = "bert";
  WEFT_RETURN_IF_ERROR(ReadSizes(config, model));
  WEFT_RETURN_IF_ERROR(ReadSize(config, "vocab_size", model.vocab_size));
  WEFT_RETURN_IF_ERROR(ReadSize(config, "max_position_embeddings", model.context));
  model.token_types = 2;
  WEFT_RETURN_IF_ERROR(ReadOptionalSize(config, "type_vocab_size", model.token_types));
  if (auto it = config.find("position_embedding_type");
      it != config.end() && !it->is_null() && *it != "absolute") {
    return InvalidError("position_embedding_type in config.json is " + it->dump() +
                        "; only \"absolute\" is computed");
  }
  WEFT_RETURN_IF_ERROR(CheckSwitch(config, {"is_decoder", false, "a bert that generates"}));
  bool tied = true;
  WEFT_RETURN_IF_ERROR(ReadSwitch(config, "tie_word_embeddings", tied));
  model.untied_classifier = !tied;
  WEFT_RETURN_IF_ERROR(TakeHead(config, base, model));
  return model;
}

Json BertToConfig(const ModelSpec& model, const std::vector<std::string>& classes) {
  const bool classification = HeadOf(model) == "classification";
  Json config;
  config["architectures"] = {classification ? "BertForSequenceClassification" : "BertForMaskedLM"};
  config["model_type"] = "bert";
  WriteSizes(model, config);
  config["max_position_embeddings"] = model.context;
  config["type_vocab_size"] = TokenTypes(model);
  config["position_embedding_type"] = "absolute";
  if (classification) WriteClasses(model, classes, config);
  return config;
}

Result<ModelSpec> VitFromConfig(const Json& config, const ModelSpec& base) {
  ModelSpec model = base;
  model.family = "vit";
  model.vocab_size = 0;
  WEFT_RETURN_IF_ERROR(ReadSizes(config, model));
  WEFT_RETURN_IF_ERROR(ReadSize(config, "image_size", model.image_size));
  WEFT_RETURN_IF_ERROR(ReadSize(config, "patch_size", model.patch_size));
  WEFT_RETURN_IF_ERROR(ReadSize(config, "num_channels", model.image_channels));
  if (model.patch_size < 1) {
    return InvalidError("patch_size in config.json must be at least 1");
  }
  WEFT_RETURN_IF_ERROR(CheckSwitch(config, {"qkv_bias", true, "attention without biases"}));
  WEFT_RETURN_IF_ERROR(TakeHead(config, base, model));
  return model;
}

Json VitToConfig(const ModelSpec& model, const std::vector<std::string>& classes) {
  Json config;
  config["architectures"] = {"ViTForImageClassification"};
  config["model_type"] = "vit";
  WriteSizes(model, config);
  config["image_size"] = model.image_size;
  config["patch_size"] = model.patch_size;
  config["num_channels"] = model.image_channels;
  config["qkv_bias"] = true;
  WriteClasses(model, classes, config);
  return config;
}

}  // namespace weft
