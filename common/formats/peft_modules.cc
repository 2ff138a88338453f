#include "common/formats/peft_modules.h"

#include <algorithm>

#include "common/formats/peft_fields.h"
#include "common/glob.h"
#include "common/model/parameter_list.h"
#include "common/model/parameter_name.h"

namespace weft {
namespace {

/// The modules of the network that have parameters, and those that these are in.
std::set<std::string> ModulesOf(const ModelSpec& model) {
  std::set<std::string> modules;
  for (const ParameterInfo& parameter : PlainParametersOf(model)) {
    for (size_t end = parameter.name.find('.'); end != std::string::npos;
         end = parameter.name.find('.', end + 1)) {
      modules.insert(parameter.name.substr(0, end));
    }
  }
  return modules;
}

/// The modules that a name means in peft and in model.peft.
struct NamedModules {
  std::vector<std::string> in_peft, here;
};

NamedModules ModulesNamed(const std::set<std::string>& modules, const std::string& name) {
  NamedModules named;
  for (const std::string& module : modules) {
    if (module.ends_with(name)) named.in_peft.push_back(module);
    if (module == name || module.ends_with("." + name)) named.here.push_back(module);
  }
  return named;
}

}  // namespace

Status ReadSavedModules(const Json& config, const ModelSpec& model,
                        std::vector<std::string>& modules) {
  std::vector<std::string> names;
  WEFT_RETURN_IF_ERROR(ReadNames(config, "modules_to_save", names));
  const std::set<std::string> all = ModulesOf(model);
  std::set<std::string> seen, added;
  const auto add = [&](const std::string& module) {
    if (added.insert(module).second) modules.push_back(module);
  };
  for (const std::string& name : names) {
    if (name.empty()) {
      return InvalidError(HasField("modules_to_save", name) + ", which is no name of a module");
    }
    if (!seen.insert(name).second) continue;
    const NamedModules named = ModulesNamed(all, name);
    const bool of_peft = name == "classifier" || name == "score";
    if (of_peft && named.in_peft.empty()) continue;
    if (named.in_peft == named.here) {
      add(name);
    } else {
      for (const std::string& module : named.in_peft) add(module);
    }
  }
  return OkStatus();
}

std::vector<std::string> BiasPatterns(const ModelSpec& model, const std::set<std::string>& layers) {
  constexpr const char* kBias = ".bias";
  std::vector<std::string> biases, patterns;
  for (const ParameterInfo& parameter : PlainParametersOf(model)) {
    if (parameter.name.ends_with(kBias)) biases.push_back(parameter.name);
  }
  for (const std::string& bias : biases) {
    const std::string layer = ModuleOf(bias);
    if (!layers.contains(layer)) continue;
    const size_t dot = layer.rfind('.');
    std::string pattern = "*" + (dot == std::string::npos ? layer : layer.substr(dot)) + kBias;
    const bool means_others = std::any_of(biases.begin(), biases.end(), [&](const auto& each) {
      return GlobMatches(pattern, each) && !layers.contains(ModuleOf(each));
    });
    if (means_others) pattern = "*" + bias;
    const bool known = std::find(patterns.begin(), patterns.end(), pattern) != patterns.end();
    if (!known) patterns.push_back(pattern);
  }
  return patterns;
}

void AddSavedModule(const ModelSpec& model, const std::string& module, Json& list) {
  const NamedModules named = ModulesNamed(ModulesOf(model), module);
  if (named.in_peft == named.here) {
    list.push_back(module);
  } else {
    for (const std::string& each : named.here) list.push_back(each);
  }
}

}  // namespace weft
