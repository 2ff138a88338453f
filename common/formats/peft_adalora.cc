#include "common/formats/peft_adalora.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string_view>

#include "common/formats/huggingface_weights.h"
#include "common/formats/peft_config.h"
#include "common/formats/peft_fields.h"
#include "common/model/parameter_list.h"
#include "common/model/parameter_name.h"
#include "common/text.h"

namespace weft {
namespace {

constexpr std::string_view kDiagonal = ".lora_E";
constexpr std::string_view kColumns = ".lora_B";  // ranks are the columns of this one
constexpr std::string_view kPatternKey = "rank_pattern";

/// The flags of the ranks that `tensor` keeps; null where files have all ranks.
const std::vector<bool>* FlagsOf(const HuggingFaceTensor& tensor, const KeptRanks& kept) {
  const auto found = kept.find(ModuleOf(tensor.parameter));
  return found == kept.end() ? nullptr : &found->second;
}

/// Calls fn(element of the tensor) for each that files have, in their order.
template <class Fn>
void ForEachKept(const HuggingFaceTensor& tensor, const std::vector<bool>& flags, Fn&& fn) {
  const bool columns = tensor.parameter.ends_with(kColumns);
  const size_t ranks = flags.size(), count = ElementCount(tensor);
  for (size_t i = 0; i < count; ++i) {
    if (flags[columns ? i % ranks : i / (count / ranks)]) fn(i);
  }
}

Status ReadSteps(const Json& config, const char* key, int64_t least, int64_t& steps) {
  const Json value = config.value(key, Json(least));
  if (value.is_number_integer() && value >= least && value <= int64_t{1'000'000'000'000}) {
    steps = value.get<int64_t>();
    return OkStatus();
  }
  return InvalidError(HasField(key, value) + ", which is no number of steps");
}

Status ReadDecay(const Json& config, const char* key, double& decay) {
  const Json value = config.value(key, Json(decay));
  if (!value.is_number() || value < 0 || value > 0.9999) {
    return InvalidError(HasField(key, value) + ", which is no number from 0 to 0.9999");
  }
  decay = value.get<double>();
  return OkStatus();
}

}  // namespace

Status ReadAdaLora(const Json& config, PeftSpec& spec) {
  AdaLoraSpec& own = spec.adalora;
  WEFT_ASSIGN_OR_RETURN(own.init_r, RankFrom("init_r", config.value("init_r", Json(own.init_r))));
  WEFT_ASSIGN_OR_RETURN(own.target_r,
                        RankFrom("target_r", config.value("target_r", Json(own.target_r))));
  WEFT_ASSIGN_OR_RETURN(spec.alpha, AlphaFrom("lora_alpha", config.value("lora_alpha", Json(8))));
  WEFT_RETURN_IF_ERROR(ReadSteps(config, "tinit", 0, own.tinit));
  WEFT_RETURN_IF_ERROR(ReadSteps(config, "tfinal", 0, own.tfinal));
  WEFT_RETURN_IF_ERROR(ReadSteps(config, "deltaT", 1, own.delta_t));
  WEFT_RETURN_IF_ERROR(ReadDecay(config, "beta1", own.beta1));
  WEFT_RETURN_IF_ERROR(ReadDecay(config, "beta2", own.beta2));
  const Json weight = config.value("orth_reg_weight", Json(own.orth_reg_weight));
  if (!weight.is_number() || weight < 0 || weight > 1e3) {
    return InvalidError(HasField("orth_reg_weight", weight) +
                        ", which is no number from 0 to 1000");
  }
  own.orth_reg_weight = weight.get<double>();
  return OkStatus();
}

Result<KeptRanks> KeptRanksFrom(const Json& config, const ModelSpec& model) {
  KeptRanks kept;
  const std::string key(kPatternKey);
  const Json pattern = config.value(key, Json());
  if (IsUnset(pattern)) return kept;
  if (!pattern.is_object()) return InvalidError(HasField(key, pattern) + ", which is no object");
  const std::set<std::string> layers = AdaptableLayers(model, /*adapted=*/true);
  const auto ranks = static_cast<size_t>(model.peft.adalora.init_r);
  for (const auto& [name, flags] : pattern.items()) {
    // Some versions keep the name of the adapter after that of the tensor.
    const size_t end = name.rfind(kDiagonal);
    const std::string layer = name.substr(0, end);
    if (end == std::string::npos || !layers.contains(layer)) {
      return InvalidError(std::string(kPeftConfigName) + " has " + key + " for " +
                          ClipText(name, 200) + ", which is no layer with an adapter");
    }
    const bool fits =
        flags.is_array() && flags.size() == ranks &&
        std::all_of(flags.begin(), flags.end(), [](const Json& flag) { return flag.is_boolean(); });
    if (!fits) {
      return InvalidError(std::string(kPeftConfigName) + " has " + key + " for " +
                          ClipText(name, 200) + ", which is no list of " + std::to_string(ranks) +
                          " times true or false, one for each rank of init_r");
    }
    std::vector<bool>& own = kept[layer];
    if (!own.empty()) {
      return InvalidError(std::string(kPeftConfigName) + " has " + key + " for " +
                          ClipText(name, 200) + ", a layer that it has another list of");
    }
    for (const Json& flag : flags) own.push_back(flag.get<bool>());
  }
  return kept;
}

Result<KeptRanks> KeptRanksOf(const ModelSpec& model, const WeightValues& values) {
  KeptRanks kept;
  bool any = false;
  for (const ParameterInfo& parameter : ParametersOf(model)) {
    if (!parameter.name.ends_with(kDiagonal)) continue;
    const HuggingFaceTensor tensor{parameter.name, parameter.name, parameter.shape, false, {}};
    WEFT_ASSIGN_OR_RETURN(const std::span<const float> diagonal, values(tensor));
    std::vector<bool>& own = kept[ModuleOf(parameter.name)];
    for (const float each : diagonal.first(ElementCount(tensor))) {
      own.push_back(each != 0);
      any = any || each != 0;
    }
  }
  const auto whole = [](const auto& layer) {
    return std::all_of(layer.second.begin(), layer.second.end(), [](bool flag) { return flag; });
  };
  if (!any || std::all_of(kept.begin(), kept.end(), whole)) kept.clear();
  return kept;
}

void AddAdaLora(const PeftSpec& spec, int64_t steps, const KeptRanks& kept, Json& config) {
  const AdaLoraSpec& own = spec.adalora;
  config["peft_type"] = "ADALORA";
  config["init_r"] = own.init_r;
  config["target_r"] = own.target_r;
  config["lora_alpha"] = spec.alpha;
  config["lora_dropout"] = spec.dropout;
  config["tinit"] = own.tinit;
  config["tfinal"] = own.tfinal;
  config["deltaT"] = own.delta_t;
  config["beta1"] = own.beta1;
  config["beta2"] = own.beta2;
  config["orth_reg_weight"] = own.orth_reg_weight;
  // peft wants steps in which ranks are chosen, even where it only reads the adapter.
  config["total_step"] = std::max(steps, own.tinit + own.tfinal + 1);
  Json& pattern = config[std::string(kPatternKey)] = Json();
  for (const auto& [layer, flags] : kept) {
    Json& list = pattern[layer + std::string(kDiagonal)] = Json::array();
    for (const bool flag : flags) list.push_back(flag);
  }
}

std::vector<uint64_t> KeptShape(const HuggingFaceTensor& tensor, const KeptRanks& kept) {
  std::vector<uint64_t> shape = FileShape(tensor);
  if (const std::vector<bool>* const flags = FlagsOf(tensor, kept)) {
    shape[tensor.parameter.ends_with(kColumns) ? 1 : 0] =
        static_cast<uint64_t>(std::count(flags->begin(), flags->end(), true));
  }
  return shape;
}

std::vector<float> TakeKept(const HuggingFaceTensor& tensor, const KeptRanks& kept,
                            std::span<const float> values) {
  const std::vector<bool>* const flags = FlagsOf(tensor, kept);
  if (flags == nullptr) return {values.begin(), values.end()};
  std::vector<float> of_file;
  ForEachKept(tensor, *flags, [&](size_t i) { of_file.push_back(values[i]); });
  return of_file;
}

void PlaceKept(const HuggingFaceTensor& tensor, const KeptRanks& kept,
               std::span<const float> of_file, std::span<float> values) {
  const std::vector<bool>* const flags = FlagsOf(tensor, kept);
  if (flags == nullptr) {
    std::copy(of_file.begin(), of_file.end(), values.begin());
    return;
  }
  std::fill(values.begin(), values.end(), 0.0f);
  size_t at = 0;
  ForEachKept(tensor, *flags, [&](size_t i) { values[i] = of_file[at++]; });
}

}  // namespace weft
