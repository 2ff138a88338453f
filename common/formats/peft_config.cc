#include "common/formats/peft_config.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "common/formats/peft_adalora.h"
#include "common/formats/peft_fields.h"
#include "common/formats/peft_merged.h"
#include "common/formats/peft_modules.h"
#include "common/formats/peft_norms.h"
#include "common/formats/peft_prompt.h"
#include "common/formats/peft_tokens.h"
#include "common/full_match.h"
#include "common/model/model_sizes.h"
#include "common/model/outer_layers.h"
#include "common/model/parameter_list.h"
#include "common/model/parameter_name.h"
#include "common/model/technique_cost.h"

namespace weft {
namespace {

constexpr char kEveryBias[] = "*.bias";
constexpr std::string_view kPissa = "pissa";
/// Before the number of steps in which peft approximates a start of pissa.
constexpr std::string_view kPissaSteps = "pissa_niter_";
/// What ends the word for the biases of adapted layers: lora_only, oft_only, ...
constexpr std::string_view kOnly = "_only";

/// Keys of the configurations that are read, or change nothing in what is computed.
const std::set<std::string_view>& KnownKeys() {
  static const std::set<std::string_view> keys = {"alpha",
                                                  "alpha_pattern",
                                                  "auto_mapping",
                                                  "base_model_name_or_path",
                                                  "beta1",
                                                  "beta2",
                                                  "bias",
                                                  "d_initial",
                                                  "decompose_both",
                                                  "decompose_factor",
                                                  "deltaT",
                                                  "eps",
                                                  "exclude_modules",
                                                  "fan_in_fan_out",
                                                  "feedforward_modules",
                                                  "inference_mode",
                                                  "init_ia3_weights",
                                                  "init_lora_weights",
                                                  "init_r",
                                                  "init_weights",
                                                  "layers_pattern",
                                                  "layers_to_transform",
                                                  "loftq_config",
                                                  "lora_alpha",
                                                  "lora_dropout",
                                                  "megatron_config",
                                                  "megatron_core",
                                                  "mini_r",
                                                  "miss_dropout",
                                                  "modules_to_save",
                                                  "num_cayley_neumann_terms",
                                                  "oft_block_size",
                                                  "orth_reg_weight",
                                                  "peft_type",
                                                  "peft_version",
                                                  "projection_prng_key",
                                                  "qalora_group_size",
                                                  "r",
                                                  "rank_pattern",
                                                  "revision",
                                                  "runtime_config",
                                                  "save_projection",
                                                  "target_modules",
                                                  "target_r",
                                                  "task_type",
                                                  "tfinal",
                                                  "tinit",
                                                  "token_indices",
                                                  "total_step",
                                                  "trainable_token_indices",
                                                  "use_cayley_neumann",
                                                  "use_dora",
                                                  "use_rslora"};
  return keys;
}

const std::map<std::string, std::string>& Methods() {
  static const std::map<std::string, std::string> methods = {{"LORA", "lora"},
                                                             {"ADALORA", "adalora"},
                                                             {"LOHA", "loha"},
                                                             {"LOKR", "lokr"},
                                                             {"OFT", "oft"},
                                                             {"VERA", "vera"},
                                                             {"IA3", "ia3"},
                                                             {"MISS", "miss"},
                                                             {"TRAINABLE_TOKENS", "selective"},
                                                             {"LN_TUNING", "selective"}};
  return methods;
}

/// Whether a `bias` says that the biases of the adapted layers are trained, and no others.
bool NamesAdaptedBiases(const Json& bias) {
  return bias.is_string() && bias.get<std::string>().ends_with(kOnly);
}

Status CheckKeys(const Json& config) {
  for (const auto& [key, value] : config.items()) {
    if (key == "target_parameters" && !IsUnset(value)) {
      return InvalidError(
          HasField(key, value) +
          ", tensors of all experts of a layer in transformers 5, where two weights "
          "of an expert share a factor; hint: an adapter of w1, w2 and w3 "
          "(target_modules), which transformers 4 and Weft train");
    }
    if (!KnownKeys().contains(key) && !IsUnset(value)) return NotComputed(key, value);
    if (key == "bias" && value != "none" && value != "all" && !value.is_null() &&
        !NamesAdaptedBiases(value)) {
      return NotComputed(key, value);
    }
  }
  return OkStatus();
}

/// Whether a start of lora is pissa, or pissa_niter_4, which approximates it in 4 steps.
bool IsPissa(const std::string& init) {
  if (init == kPissa) return true;
  return init.starts_with(kPissaSteps) && init.size() > kPissaSteps.size() &&
         init.find_first_not_of("0123456789", kPissaSteps.size()) == std::string::npos;
}

Status ReadInit(const Json& config, PeftSpec& spec) {
  const Json init = config.value("init_lora_weights", Json(true));
  if (init.is_boolean() || init == "gaussian" || init == "eva" || init == "orthogonal") {
    return OkStatus();  // the file has what they have become
  }
  if (init.is_string() && IsPissa(init.get<std::string>())) {
    spec.init = kPissa;
    return OkStatus();
  }
  if (init != "olora") return NotComputed("init_lora_weights", init);
  spec.init = init.get<std::string>();
  return OkStatus();
}

Status ReadLora(const Json& config, PeftSpec& spec) {
  WEFT_ASSIGN_OR_RETURN(spec.rank, RankFrom("r", config.value("r", Json(8))));
  WEFT_ASSIGN_OR_RETURN(spec.alpha, AlphaFrom("lora_alpha", config.value("lora_alpha", Json(8))));
  WEFT_RETURN_IF_ERROR(ReadFlag(config, "use_rslora", spec.use_rslora));
  WEFT_RETURN_IF_ERROR(ReadFlag(config, "use_dora", spec.use_dora));
  WEFT_RETURN_IF_ERROR(ReadPatterns(config, "rank_pattern", RankFrom, spec.rank_pattern));
  WEFT_RETURN_IF_ERROR(ReadPatterns(config, "alpha_pattern", AlphaFrom, spec.alpha_pattern));
  return ReadInit(config, spec);
}

Status ReadMiss(const Json& config, PeftSpec& spec) {
  WEFT_ASSIGN_OR_RETURN(spec.rank, RankFrom("r", config.value("r", Json(64))));
  const Json form = config.value("init_weights", Json(true));
  if (!form.is_boolean()) return NotComputed("init_weights", form);
  return OkStatus();
}

/// kInvalid where an expression of rank_pattern or alpha_pattern takes too long on a name of the
/// first block; those of other blocks differ in a number.
Status CheckPatterns(const ModelSpec& model, const PeftSpec& spec) {
  std::vector<std::string> names;
  for (const ParameterInfo& weight : PlainBlockParameters(model, 0)) {
    if (weight.block_matrix()) names.push_back(LayerOf(weight.name));
  }
  const auto check = [&](const auto& patterns) -> Status {
    for (const auto& entry : patterns) {
      for (const std::string& name : names) {
        const Result<bool> fits = FullMatch(entry.first, name);
        if (!fits.ok()) return fits.status();
      }
    }
    return OkStatus();
  };
  WEFT_RETURN_IF_ERROR(check(spec.rank_pattern));
  return check(spec.alpha_pattern);
}

/// The targets of the configuration; of those that are not written as such none.
void ReadTargets(const Json& config, PeftSpec& spec) {
  const Json targets = config.value("target_modules", Json());
  const Json blocks = config.value("layers_to_transform", Json());
  const auto add = [&](const Json& target) {
    if (target.is_string()) spec.target_modules.push_back(target.get<std::string>());
  };
  if (targets.is_array()) std::for_each(targets.begin(), targets.end(), add);
  if (targets == "all-linear") {
    add(targets);
  } else if (targets.is_string()) {
    spec.target_regex = targets.get<std::string>();
  }
  const auto add_block = [&](const Json& block) {
    if (block.is_number_integer()) spec.layers_to_transform.push_back(block.get<int64_t>());
  };
  if (blocks.is_array()) std::for_each(blocks.begin(), blocks.end(), add_block);
  add_block(blocks);
}

/// Whether a target is that of a layer outside blocks, too.
bool NamesOthers(const ModelSpec& model, const std::string& target, bool regex) {
  if (target == "all-linear") return true;
  for (const ParameterInfo& parameter : PlainParametersOf(model)) {
    if (parameter.block >= 0 || !parameter.matrix() || !parameter.name.ends_with(".weight")) {
      continue;
    }
    const bool tokens = parameter.role == ParameterRole::kTokenEmbedding;
    if (tokens && AdaptsTokenLayer(model)) continue;
    if (IsOuterWeight(model, parameter) && !AdaptersOf(model, parameter).empty()) continue;
    const std::string layer = LayerOf(parameter.name);
    if (regex) {
      const Result<bool> fits = FullMatch(target, layer);
      if (!fits.ok() || *fits) return true;
    } else if (layer == target || layer.ends_with("." + target)) {
      return true;
    }
  }
  return false;
}

/// target_modules and layers_to_transform of a configuration: those of `model`, or the whole names
/// where peft would take them for more or for less. With transformers 5 it compares an expression
/// with names of experts without their number.
void AddTargets(const ModelSpec& model, Json& config) {
  const std::set<std::string> layers = AdaptableLayers(model, /*adapted=*/true);
  const std::vector<std::string>& targets = model.peft.target_modules;
  const std::string& regex = model.peft.target_regex;
  config["layers_to_transform"] = Json();
  if (!regex.empty() && model.peft.layers_to_transform.empty() && !HasExpertAdapters(model) &&
      !NamesOthers(model, regex, /*regex=*/true)) {
    config["target_modules"] = regex;
    return;
  }
  const bool as_it_is =
      model.peft.method != "ia3" && !targets.empty() &&
      std::none_of(targets.begin(), targets.end(), [&](const std::string& each) {
        return each.find('*') != std::string::npos || NamesOthers(model, each, /*regex=*/false);
      });
  config["target_modules"] =
      as_it_is ? targets : std::vector<std::string>(layers.begin(), layers.end());
  if (as_it_is && !model.peft.layers_to_transform.empty()) {
    config["layers_to_transform"] = model.peft.layers_to_transform;
  }
}

/// The word that the configuration of a method has for the biases of adapted layers; "": it does
/// not say which biases are trained.
std::string AdaptedBiases(const std::string& method) {
  static const std::map<std::string, std::string> words = {{"lora", "lora_only"},
                                                           {"adalora", "lora_only"},
                                                           {"miss", "MiSS_only"},
                                                           {"oft", "oft_only"},
                                                           {"vera", "vera_only"}};
  const auto word = words.find(method);
  return word == words.end() ? "" : word->second;
}

/// What the configuration has of modules_to_save, and as `bias`.
Status AddSaved(const ModelSpec& model, Json& config) {
  config["bias"] = "none";
  Json saved = Json::array();
  const std::string word = AdaptedBiases(model.peft.method);
  const std::vector<std::string>& modules = model.peft.modules_to_save;
  const std::vector<std::string> biases =
      BiasPatterns(model, AdaptableLayers(model, /*adapted=*/true));
  const auto trained = [&](const std::string& module) {
    return std::find(modules.begin(), modules.end(), module) != modules.end();
  };
  const bool only = !word.empty() && !trained(kEveryBias) && !biases.empty() &&
                    std::all_of(biases.begin(), biases.end(), trained);
  if (only) config["bias"] = word;
  for (const std::string& module : modules) {
    if (only && std::find(biases.begin(), biases.end(), module) != biases.end()) continue;
    if (module == kEveryBias && !word.empty()) {
      config["bias"] = "all";
    } else if (module.find('*') != std::string::npos) {
      return InvalidError("peft has no pattern '" + module +
                          "' in modules_to_save; hint: --format hf, or names of modules");
    } else {
      AddSavedModule(model, module, saved);
    }
  }
  config["modules_to_save"] = saved.empty() ? Json() : saved;
  return CheckTableStaysTied(model);
}

// In a classification peft trains the classifier whole, so that it can have no adapter. It has no
// task of masked language models: with virtual tokens it takes them as those that classify tokens.
std::string TaskOf(const ModelSpec& model) {
  if (HeadOf(model) == "causal_lm") return "CAUSAL_LM";
  if (HeadOf(model) == "masked_lm" && HasPromptFolder(model.peft)) return "TOKEN_CLS";
  if (AdaptableLayers(model, /*adapted=*/true).contains("classifier")) return "";
  return HeadOf(model) == "classification" && model.family == "bert" ? "SEQ_CLS" : "";
}

void AddLora(const PeftSpec& spec, Json& config) {
  config["peft_type"] = "LORA";
  config["r"] = spec.rank;
  config["lora_alpha"] = spec.alpha;
  config["lora_dropout"] = spec.dropout;
  config["use_rslora"] = spec.use_rslora;
  config["use_dora"] = spec.use_dora;
  config["rank_pattern"] = Json::object();
  for (const auto& [pattern, rank] : spec.rank_pattern) config["rank_pattern"][pattern] = rank;
  config["alpha_pattern"] = Json::object();
  for (const auto& [pattern, alpha] : spec.alpha_pattern) config["alpha_pattern"][pattern] = alpha;
  const bool from_weights = spec.init == "pissa" || spec.init == "olora";
  config["init_lora_weights"] = from_weights ? Json(spec.init) : Json(true);
}

/// Writes the scale alpha / sqrt(rank) as one of alpha / rank. With transformers 5 peft makes one
/// adapter of two of an expert, with twice the rank and alpha, which keeps the latter alone. Not
/// where both maps have patterns, which may describe the same layer in other words, nor where an
/// alpha would be more than is read.
void ScaleByRank(const PeftSpec& spec, Json& config) {
  if (!spec.rank_pattern.empty() && !spec.alpha_pattern.empty()) return;
  double largest = 0;
  const auto scaled = [&](double alpha, int64_t rank) {
    const double by_rank = alpha * std::sqrt(static_cast<double>(rank));
    largest = std::max(largest, by_rank);
    return by_rank;
  };
  const double alpha = scaled(spec.alpha, spec.rank);
  Json patterns = Json::object();
  for (const auto& [pattern, rank] : spec.rank_pattern) {
    patterns[pattern] = scaled(spec.alpha, rank);
  }
  for (const auto& [pattern, own] : spec.alpha_pattern) {
    patterns[pattern] = scaled(own, spec.rank);
  }
  if (largest > kLargestAlpha) return;
  config["use_rslora"] = false;
  config["lora_alpha"] = alpha;
  config["alpha_pattern"] = patterns;
}

void AddIa3(const ModelSpec& model, Json& config) {
  config["peft_type"] = "IA3";
  config["feedforward_modules"] = Json::array();
  for (const ParameterInfo& parameter : ParametersOf(model)) {
    if (parameter.adapter != AdapterSide::kInput) continue;
    config["feedforward_modules"].push_back(LayerOf(parameter.adapter_of));
  }
}

void AddMiss(const PeftSpec& spec, Json& config) {
  config["peft_type"] = "MISS";
  config["r"] = spec.rank;
  config["mini_r"] = 1;
  config["miss_dropout"] = 0.0;
  config["init_weights"] = true;
}

}  // namespace

std::set<std::string> AdaptableLayers(const ModelSpec& model, bool adapted) {
  std::set<std::string> layers;
  for (int64_t block = 0; block < DistinctBlocks(model); ++block) {
    for (const ParameterInfo& weight : PlainBlockParameters(model, block)) {
      if (!weight.block_matrix()) continue;
      if (adapted && AdaptersOf(model, weight).empty()) continue;
      layers.insert(LayerOf(weight.name));
    }
  }
  for (const ParameterInfo& weight : OuterWeights(model)) {
    if (adapted && !AdaptersOf(model, weight).empty()) layers.insert(LayerOf(weight.name));
  }
  const std::string tokens = TokenLayer(model);
  if (!tokens.empty() && (!adapted || AdaptsTokenLayer(model))) layers.insert(tokens);
  return layers;
}

Result<PeftSpec> PeftFromConfig(const Json& config, const ModelSpec& model,
                                const std::set<std::string>& layers) {
  const Json type = config.value("peft_type", Json());
  if (type == "BONE") {
    return InvalidError(HasField("peft_type", type) +
                        ", which is called MISS since peft 0.18; hint: peft's "
                        "scripts/convert-bone-to-miss.py converts the folder");
  }
  const auto method = Methods().find(type.is_string() ? type.get<std::string>() : "");
  if (method == Methods().end()) {
    return InvalidError(
        HasField("peft_type", type) +
        "; LORA, ADALORA, LOHA, LOKR, OFT, VERA, IA3, MISS, TRAINABLE_TOKENS, LN_TUNING, "
        "PROMPT_TUNING, P_TUNING and PREFIX_TUNING are imported");
  }
  PeftSpec spec;
  spec.method = method->second;
  spec.module_names = model.peft.module_names;
  WEFT_RETURN_IF_ERROR(CheckKeys(config));
  if (IsNormConfig(config)) return NormsFromConfig(config, model, layers);
  if (spec.method == "lora") WEFT_RETURN_IF_ERROR(ReadLora(config, spec));
  if (spec.method == "lora" || spec.method == "selective") {
    WEFT_RETURN_IF_ERROR(ReadTokenRows(config, model, spec));
  }
  if (spec.method == "selective") return spec;
  if (spec.method == "adalora") WEFT_RETURN_IF_ERROR(ReadAdaLora(config, spec));
  if (spec.method == "miss") WEFT_RETURN_IF_ERROR(ReadMiss(config, spec));
  if (IsMergedMethod(spec.method)) WEFT_RETURN_IF_ERROR(ReadMerged(config, model, layers, spec));
  WEFT_RETURN_IF_ERROR(CheckPatterns(model, spec));
  if (spec.method == "ia3") {
    WEFT_RETURN_IF_ERROR(ReadNames(config, "feedforward_modules", spec.feedforward_modules));
  }
  WEFT_RETURN_IF_ERROR(ReadSavedModules(config, model, spec.modules_to_save));
  const Json bias = config.value("bias", Json());
  if (bias == "all") spec.modules_to_save.emplace_back(kEveryBias);
  if (NamesAdaptedBiases(bias)) {
    for (std::string& pattern : BiasPatterns(model, layers)) {
      spec.modules_to_save.push_back(std::move(pattern));
    }
  }
  // The targets of the configuration where they say the same, and otherwise the layers.
  ModelSpec adapted = model;
  adapted.peft = spec;
  ReadTargets(config, adapted.peft);
  const bool named = !adapted.peft.target_modules.empty() || !adapted.peft.target_regex.empty();
  if (named && AdaptableLayers(adapted, /*adapted=*/true) == layers) return adapted.peft;
  spec.target_modules.assign(layers.begin(), layers.end());
  return spec;
}

Result<Json> ConfigOfPeft(const ModelSpec& model, const AdapterOrigin& origin,
                          const KeptRanks& kept) {
  Json config;
  if (model.peft.method == "lora") {
    if (model.family == "gpt2" && model.peft.init == "olora") return NotOfConv1D("olora");
    AddLora(model.peft, config);
    if (model.peft.use_rslora && HasExpertAdapters(model)) ScaleByRank(model.peft, config);
  } else if (model.peft.method == "adalora") {
    AddAdaLora(model.peft, origin.steps, kept, config);
  } else if (model.peft.method == "ia3") {
    AddIa3(model, config);
  } else if (model.peft.method == "miss") {
    if (model.family == "gpt2") return NotOfConv1D(model.peft.method);
    AddMiss(model.peft, config);
  } else if (IsMergedMethod(model.peft.method)) {
    WEFT_RETURN_IF_ERROR(AddMerged(model, config));
  } else if (HasPromptFolder(model.peft)) {
    config = ConfigOfPrompt(model);
  } else if (TunesNorms(model)) {
    WEFT_RETURN_IF_ERROR(AddNorms(model, config));
  } else if (!IsTokenRowsAlone(model.peft)) {
    return InvalidError(
        "the model has no adapter to write; hint: --format hf, or train one with model.peft");
  }
  const std::string task = TaskOf(model);
  config["task_type"] = task.empty() ? Json() : Json(task);
  config["base_model_name_or_path"] = origin.base.empty() ? Json() : Json(origin.base);
  config["inference_mode"] = true;
  AddTokenRows(model, config);
  const std::string& method = model.peft.method;
  if (method == "selective") return config;
  const bool prompt = HasPromptFolder(model.peft);
  if (!prompt && method != "miss" && method != "loha" && method != "lokr") {
    config["fan_in_fan_out"] = model.family == "gpt2";
  }
  WEFT_RETURN_IF_ERROR(AddSaved(model, config));
  if (AdaptedBiases(method).empty()) config.erase("bias");
  if (prompt) {
    // Old versions of peft have no such field there.
    if (config["modules_to_save"].is_null()) config.erase("modules_to_save");
    return config;
  }
  AddTargets(model, config);
  if (method == "ia3") config.erase("layers_to_transform");
  return config;
}

}  // namespace weft
