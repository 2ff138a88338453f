#include "common/formats/huggingface_config.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/formats/git_lfs.h"
#include "common/formats/huggingface.h"
#include "common/formats/peft_adapter.h"
#include "common/formats/weight_files.h"
#include "common/model/model_sizes.h"
#include "common/spec/model_family.h"
#include "common/spec/phases.h"
#include "common/spec/spec_json.h"

namespace weft {
namespace {

constexpr uint64_t kMaxConfigBytes = 16 << 20;

std::string TypeOf(const Json& config) {
  auto it = config.find("model_type");
  return it == config.end() ? "absent" : it->dump();
}

/// What the files cannot say.
Status CheckArchitecture(const ModelSpec& model, const char* when) {
  const auto refuse = [&](const std::string& what) {
    return InvalidError(what + " cannot be combined with " + when +
                        ": transformers has no such model");
  };
  const std::string start = InitializationOf(model);
  if (start == "fixup" || start == "t_fixup" || start == "rezero" ||
      (start == "mup" && model.width != model.initialization.base_width)) {
    return refuse("model.initialization.method " + start);
  }
  if (NormPositionOf(model) != (model.family == "bert" ? "post" : "pre")) {
    return refuse("another model.norm_position than the family's");
  }
  if (FactorisedEmbedding(model)) return refuse("model.embedding_width");
  if (model.family == "gpt2" && KvHeads(model) != model.heads) return refuse("model.kv_heads");
  return OkStatus();
}

Status CheckSizes(const ModelSpec& model) {
  if (Result<ModelSpec> checked = FromJson<ModelSpec>(ToJson(model)); !checked.ok()) {
    return checked.status().WithContext("config.json does not give a model");
  }
  const bool images = model.family == "vit";
  if (images && model.image_size % model.patch_size != 0) {
    return InvalidError("config.json does not give a model: image_size " +
                        std::to_string(model.image_size) + " must be a multiple of patch_size " +
                        std::to_string(model.patch_size));
  }
  if ((model.vocab_size < 1 && !images) || model.width % model.heads != 0 ||
      model.heads % KvHeads(model) != 0) {
    return InvalidError("config.json does not give a model: vocab_size " +
                        std::to_string(model.vocab_size) + " must be positive, the width " +
                        std::to_string(model.width) + " a multiple of the heads " +
                        std::to_string(model.heads) + ", and these a multiple of the key heads " +
                        std::to_string(KvHeads(model)));
  }
  return OkStatus();
}

std::string ConfigPath(const std::string& folder) {
  return JoinPath(folder, "config.json");
}

Result<Json> ReadConfig(Env& env, const std::string& folder) {
  const std::string path = ConfigPath(folder);
  if (!env.FileExists(path)) return MissingFileError(env, folder, "config.json");
  WEFT_ASSIGN_OR_RETURN(std::string text, ReadFile(env, path, kMaxConfigBytes));
  WEFT_RETURN_IF_ERROR(CheckNotGitLfsPointer(text, path));
  Result<Json> config = ParseJson(text);
  if (!config.ok()) return config.status().WithContext(path);
  if (!config->is_object()) return InvalidError(path + " is not a JSON object");
  return config;
}

}  // namespace

const Json* Find(const Json& config, const char* key) {
  auto it = config.find(key);
  return it == config.end() || it->is_null() ? nullptr : &*it;
}

Status ReadSize(const Json& config, const char* key, int64_t& out) {
  auto it = config.find(key);
  if (it == config.end()) return InvalidError(std::string("config.json has no ") + key);
  if (!it->is_number_integer() || (it->is_number_unsigned() && it->get<uint64_t>() > 1u << 30)) {
    return InvalidError(std::string(key) + " in config.json must be a whole number, not " +
                        it->dump());
  }
  out = it->get<int64_t>();
  return OkStatus();
}

Status ReadSize(const Json& config, const char* key, const char* alias, int64_t& out) {
  if (Find(config, alias) == nullptr) return ReadSize(config, key, out);
  WEFT_RETURN_IF_ERROR(ReadSize(config, alias, out));
  if (Find(config, key) == nullptr) return OkStatus();
  const int64_t by_alias = out;
  WEFT_RETURN_IF_ERROR(ReadSize(config, key, out));
  if (out == by_alias) return OkStatus();
  return InvalidError("config.json has " + std::string(key) + " " + std::to_string(out) + " and " +
                      alias + " " + std::to_string(by_alias) +
                      ", which mean the same; hint: delete the wrong one");
}

Status ReadOptionalSize(const Json& config, const char* key, int64_t& out) {
  return Find(config, key) == nullptr ? OkStatus() : ReadSize(config, key, out);
}

Status ReadNumber(const Json& config, const char* key, double& out) {
  auto it = config.find(key);
  if (it == config.end() || it->is_null()) return OkStatus();
  if (!it->is_number()) {
    return InvalidError(std::string(key) + " in config.json must be a number, not " + it->dump());
  }
  out = it->get<double>();
  return OkStatus();
}

Status ReadSwitch(const Json& config, const char* key, bool& out) {
  auto it = config.find(key);
  if (it == config.end() || it->is_null()) return OkStatus();
  if (!it->is_boolean()) {
    return InvalidError(std::string(key) + " in config.json must be true or false, not " +
                        it->dump());
  }
  out = it->get<bool>();
  return OkStatus();
}

Status CheckSwitch(const Json& config, const RequiredSwitch& item) {
  auto it = config.find(item.key);
  if (it == config.end() || *it == item.value) return OkStatus();
  return InvalidError(std::string(item.key) + " in config.json is " + it->dump() + ": " +
                      item.meaning + " is not supported");
}

Result<ModelSpec> ModelFromConfig(const Json& config, const ModelSpec& base) {
  if (!config.is_object()) return InvalidError("config.json is not a JSON object");
  const std::string type = TypeOf(config);
  const struct {
    const char* type;
    Result<ModelSpec> (*read)(const Json& config, const ModelSpec& base);
  } readers[] = {
      {"\"gpt2\"", Gpt2FromConfig},     {"\"llama\"", LlamaFromConfig},
      {"\"mistral\"", LlamaFromConfig}, {"\"mixtral\"", LlamaFromConfig},
      {"\"qwen2\"", LlamaFromConfig},   {"\"bert\"", BertFromConfig},
      {"\"vit\"", VitFromConfig},
  };
  const auto* reader = std::find_if(std::begin(readers), std::end(readers),
                                    [&](const auto& candidate) { return candidate.type == type; });
  if (reader == std::end(readers)) {
    return InvalidError(
        "model_type in config.json is " + type +
        "; \"gpt2\", \"llama\", \"mistral\", \"mixtral\", \"qwen2\", \"bert\" and \"vit\" can be "
        "imported");
  }
  if (Find(config, "quantization_config") != nullptr) {
    return InvalidError(
        "config.json has a quantization_config: quantised weights are not "
        "supported; hint: take the unquantised model");
  }
  WEFT_ASSIGN_OR_RETURN(ModelSpec model, reader->read(config, base));
  WEFT_RETURN_IF_ERROR(TakeObjective(config, model));
  WEFT_RETURN_IF_ERROR(CheckArchitecture(model, "model.import_path"));
  WEFT_RETURN_IF_ERROR(CheckSizes(model));
  return model;
}

Result<ModelSpec> ReadModelConfig(Env& env, const std::string& folder, const ModelSpec& base) {
  WEFT_ASSIGN_OR_RETURN(Json config, ReadConfig(env, folder));
  Result<ModelSpec> model = ModelFromConfig(config, base);
  if (!model.ok()) return model.status().WithContext(ConfigPath(folder));
  return model;
}

Result<ImportedHead> ReadHead(Env& env, const std::string& folder) {
  WEFT_ASSIGN_OR_RETURN(Json config, ReadConfig(env, folder));
  Result<ImportedHead> head = HeadOfConfig(config);
  if (!head.ok()) return head.status().WithContext(ConfigPath(folder));
  return head;
}

bool HasHead(const ImportedHead& imported, const ModelSpec& model) {
  if (imported.head != HeadOf(model)) return false;
  return imported.head != "classification" || imported.classes == model.classes;
}

namespace {

/// Puts what the folder of an adapter says into model.peft.
Status ResolveAdapter(Env& env, ModelSpec& model) {
  const std::string folder = model.peft.import_path;
  if (folder.empty()) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(PeftSpec peft, ReadAdapterConfig(env, folder, model));
  if (peft.method != model.peft.method) {
    return InvalidError("the adapter in " + folder + " is of " + peft.method +
                        "; hint: model.peft.method " + peft.method);
  }
  // What concerns training stays that of the job.
  peft.import_path = folder;
  peft.dropout = model.peft.dropout;
  peft.loraplus_lr_ratio = model.peft.loraplus_lr_ratio;
  const int64_t ranks = std::exchange(peft.adalora, model.peft.adalora).init_r;
  peft.adalora.init_r = ranks;
  model.peft = std::move(peft);
  return OkStatus();
}

}  // namespace

Status ResolveImportedModel(Env& env, JobSpec& job) {
  if (job.model.import_path.empty()) return ResolveAdapter(env, job.model);
  WEFT_ASSIGN_OR_RETURN(job.model, ReadModelConfig(env, job.model.import_path, job.model));
  const std::string whose = "with the model in " + job.model.import_path;
  WEFT_RETURN_IF_ERROR(CheckFamily(job.model).WithContext(whose));
  WEFT_RETURN_IF_ERROR(SpreadImportedSizes(job));
  WEFT_RETURN_IF_ERROR(ResolveAdapter(env, job.model));
  WEFT_RETURN_IF_ERROR(ValidateHead(job));
  if (job.model.family != "vit" && SequenceLength(job) > job.model.context) {
    return InvalidError("train.sequence_length " + std::to_string(SequenceLength(job)) +
                        " is longer than the context " + std::to_string(job.model.context) +
                        " of the model in " + job.model.import_path);
  }
  return ValidateKnownSizes(job).WithContext(whose);
}

std::string PreprocessorConfig(const ModelSpec& model, const DataSpec& data) {
  Json config;
  const std::vector<double> mean(static_cast<size_t>(model.image_channels), data.pixel_mean);
  const std::vector<double> deviation(mean.size(), data.pixel_deviation);
  config["image_processor_type"] = "ViTImageProcessor";
  config["do_resize"] = true;
  config["do_rescale"] = true;
  config["do_normalize"] = true;
  config["rescale_factor"] = 1.0 / 255;
  config["size"] = {{"height", model.image_size}, {"width", model.image_size}};
  config["image_mean"] = mean;
  config["image_std"] = deviation;
  return config.dump(2) + "\n";
}

Result<Json> ModelToConfig(const ModelSpec& model, const std::vector<std::string>& classes) {
  WEFT_RETURN_IF_ERROR(CheckArchitecture(model, "an export for transformers"));
  Json config;
  if (model.family == "vit") {
    config = VitToConfig(model, classes);
  } else if (model.family == "bert") {
    config = BertToConfig(model, classes);
  } else if (model.family == "llama") {
    WEFT_ASSIGN_OR_RETURN(config, LlamaToConfig(model));
  } else {
    config = Gpt2ToConfig(model);
  }
  config["initializer_range"] = model.initializer_range;
  if (model.family == "vit") return config;
  config["vocab_size"] = model.vocab_size;
  config["tie_word_embeddings"] = !model.untied_classifier;
  config["use_cache"] = true;
  return config;
}

}  // namespace weft
