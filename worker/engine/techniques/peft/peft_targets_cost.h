#pragma once

#include <string>
#include <vector>

#include "common/model/parameter_list.h"
#include "common/spec/model_spec.h"

namespace weft {

// What model.peft names: layers, parameters, and the rank of each layer.

/// Whether the method puts adapters besides weights of blocks.
bool AdaptsWeights(const PeftSpec& spec);

/// Whether it also does besides those outside the blocks (IsOuterWeight) that targets name.
inline bool AdaptsOuterLayers(const PeftSpec& spec) {
  return spec.method == "lora";
}

/// model.peft.target_modules, with the default of the family resolved; empty with a target_regex.
std::vector<std::string> TargetModules(const ModelSpec& model);

/// Whether model.peft has an adapter besides this weight of a block, or outside them.
bool IsTarget(const ModelSpec& model, const ParameterInfo& weight);

/// The first layer outside the blocks that has an adapter; "": none.
std::string OuterTarget(const ModelSpec& model);

/// Whether the classifier, which has a matrix of its own, has an adapter.
bool AdaptsClassifier(const ModelSpec& model);

/// Whether ia3 scales the inputs of the layer of this target, and not its results.
bool ScalesInputs(const ModelSpec& model, const ParameterInfo& weight);

/// Whether model.peft.modules_to_save names this parameter of the network.
bool IsSavedWhole(const ModelSpec& model, const std::string& parameter);

/// Whether factors start as a part of their weight, which keeps the rest (init pissa or olora).
bool DecomposesWeights(const PeftSpec& spec);

/// Columns of the last factor of lora, adalora, loha, lokr, vera or miss besides a weight of this
/// name.
int64_t RankOf(const PeftSpec& spec, const std::string& weight);

/// What the product of the factors of lora, adalora, loha or lokr is multiplied by, besides a
/// weight of this name.
double LoraScale(const PeftSpec& spec, const std::string& weight);

/// Whether `layer` is what an entry of target_modules says.
bool IsNamedLayer(const std::string& layer, const std::string& target);

/// Whether `layer`, one outside the blocks, is: all-linear leaves these out.
bool IsNamedOuterLayer(const std::string& layer, const std::string& target);

/// Whether `layer`, that of the token embedding, is: by the last parts of its name alone.
bool IsTokenLayer(const std::string& layer, const std::string& target);

/// Whether a parameter is what an entry of modules_to_save says.
bool IsOfModule(const std::string& parameter, const std::string& module);

/// What an entry of rank_pattern or alpha_pattern is a regular expression of.
std::string PatternOfLastParts(const std::string& pattern);

}  // namespace weft
