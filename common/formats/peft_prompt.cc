#include "common/formats/peft_prompt.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "common/check.h"
#include "common/formats/huggingface_weights.h"
#include "common/formats/peft_fields.h"
#include "common/formats/peft_modules.h"
#include "common/model/model_sizes.h"
#include "common/model/parameter_list.h"

namespace weft {
namespace {

const std::set<std::string_view>& KnownKeys() {
  static const std::set<std::string_view> keys = {"auto_mapping",
                                                  "base_model_name_or_path",
                                                  "encoder_dropout",
                                                  "encoder_hidden_size",
                                                  "encoder_num_layers",
                                                  "encoder_reparameterization_type",
                                                  "inference_mode",
                                                  "init_weights",
                                                  "modules_to_save",
                                                  "num_attention_heads",
                                                  "num_layers",
                                                  "num_transformer_submodules",
                                                  "num_virtual_tokens",
                                                  "peft_type",
                                                  "peft_version",
                                                  "prefix_projection",
                                                  "prompt_tuning_init",
                                                  "prompt_tuning_init_text",
                                                  "revision",
                                                  "task_type",
                                                  "token_dim",
                                                  "tokenizer_kwargs",
                                                  "tokenizer_name_or_path"};
  return keys;
}

Status Refused(const std::string& key, const Json& value, const std::string& wanted) {
  return InvalidError(HasField(key, value) + ", " + wanted);
}

/// A matrix in float64, row after row.
struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<double> values;
};

/// x Wᵀ + b.
Matrix Linear(const Matrix& x, const Matrix& weight, const Matrix& bias) {
  Matrix y{x.rows, weight.rows, {}};
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t o = 0; o < weight.rows; ++o) {
      double sum = bias.values[static_cast<size_t>(o)];
      for (int64_t i = 0; i < x.columns; ++i) {
        sum += x.values[static_cast<size_t>(r * x.columns + i)] *
               weight.values[static_cast<size_t>(o * x.columns + i)];
      }
      y.values.push_back(sum);
    }
  }
  return y;
}

/// The columns of `right` behind those of `left`, which may have none.
Matrix Joined(const Matrix& left, const Matrix& right) {
  Matrix joined{right.rows, left.columns + right.columns, {}};
  for (int64_t r = 0; r < right.rows; ++r) {
    const auto add = [&](const Matrix& from) {
      const auto row = from.values.begin() + r * from.columns;
      joined.values.insert(joined.values.end(), row, row + from.columns);
    };
    add(left);
    add(right);
  }
  return joined;
}

HuggingFaceTensor TensorOf(const ParameterInfo& parameter) {
  return {kPromptTensorName, parameter.name, parameter.shape, false, {}};
}

}  // namespace

bool HasPromptFolder(const PeftSpec& spec) {
  return spec.method == "prompt" || spec.method == "p_tuning" || spec.method == "prefix";
}

bool IsPromptConfig(const Json& config) {
  const Json type = config.value("peft_type", Json());
  return type == "PROMPT_TUNING" || type == "P_TUNING" || type == "PREFIX_TUNING";
}

std::vector<ParameterInfo> PromptParameters(const ModelSpec& model) {
  std::vector<ParameterInfo> parameters;
  for (ParameterInfo& parameter : ParametersOf(model)) {
    if (parameter.of_virtual_tokens) parameters.push_back(std::move(parameter));
  }
  return parameters;
}

Result<PeftSpec> PromptFromConfig(const Json& config, const ModelSpec& model) {
  for (const auto& [key, value] : config.items()) {
    const bool unset =
        value.is_null() || value == false || (value.is_structured() && value.empty());
    if (KnownKeys().contains(key) || unset) continue;
    return Refused(key, value, "which is not computed; hint: leave it out");
  }
  const bool prefix = config["peft_type"] == "PREFIX_TUNING";
  PeftSpec spec;
  spec.method = prefix ? "prefix" : "prompt";
  const auto check = [&](const std::string& key, int64_t wanted) {
    const Json value = config.value(key, Json());
    return value.is_null() || value == wanted
               ? OkStatus()
               : Refused(key, value,
                         "and the model has " + std::to_string(wanted) +
                             "; hint: model.import_path must be the adapter's base "
                             "model");
  };
  WEFT_RETURN_IF_ERROR(check("num_transformer_submodules", 1));
  WEFT_RETURN_IF_ERROR(check("num_layers", model.layers));
  WEFT_RETURN_IF_ERROR(check("token_dim", prefix ? KvWidth(model) : model.width));
  const Json count = config.value("num_virtual_tokens", Json());
  constexpr int64_t kMost = int64_t{1} << 16;  // as model.peft.num_virtual_tokens
  if (!count.is_number_integer() || count < 1 || count > kMost) {
    return Refused("num_virtual_tokens", count,
                   "which is no number from 1 to " + std::to_string(kMost));
  }
  spec.num_virtual_tokens = count.get<int64_t>();
  WEFT_RETURN_IF_ERROR(ReadSavedModules(config, model, spec.modules_to_save));
  return spec;
}

Json ConfigOfPrompt(const ModelSpec& model) {
  const PeftSpec& spec = model.peft;
  const bool prefix = spec.method == "prefix";
  Json config;
  config["num_virtual_tokens"] = spec.num_virtual_tokens;
  config["num_layers"] = model.layers;
  config["num_transformer_submodules"] = 1;
  config["num_attention_heads"] = prefix ? KvHeads(model) : model.heads;
  config["token_dim"] = prefix ? KvWidth(model) : model.width;
  const int64_t inner = spec.encoder_hidden_size > 0 ? spec.encoder_hidden_size : model.width;
  if (prefix) {
    config["peft_type"] = "PREFIX_TUNING";
    // The file has what the projection makes: peft reads that without one.
    config["prefix_projection"] = false;
    config["encoder_hidden_size"] = spec.prefix_projection ? Json(inner) : Json();
  } else if (spec.method == "p_tuning") {
    config["peft_type"] = "P_TUNING";
    config["encoder_reparameterization_type"] = "MLP";
    config["encoder_hidden_size"] = inner;
    config["encoder_num_layers"] = 2;
    config["encoder_dropout"] = 0.0;
  } else {
    config["peft_type"] = "PROMPT_TUNING";
    config["prompt_tuning_init"] = "RANDOM";
    config["prompt_tuning_init_text"] = Json();
    config["tokenizer_name_or_path"] = Json();
    config["tokenizer_kwargs"] = Json();
  }
  return config;
}

Status ImportPrompt(const SafetensorsFile& file, const std::string& path, const ModelSpec& model,
                    const WeightBuffer& buffer) {
  const std::vector<ParameterInfo> parameters = PromptParameters(model);
  int64_t columns = 0;
  for (const ParameterInfo& parameter : parameters) columns += parameter.shape[1];
  const int64_t rows = model.peft.num_virtual_tokens;
  const SafetensorsView* const view = file.Find(kPromptTensorName);
  const std::vector<uint64_t> shape = {static_cast<uint64_t>(rows), static_cast<uint64_t>(columns)};
  if (view == nullptr || view->shape != shape || !IsReadable(view->type)) {
    const std::string found = view == nullptr ? "none" : DescribeTensor(view->type, view->shape);
    return InvalidError(path + ": tensor '" + kPromptTensorName + "' is " + found +
                        ", but the model needs " + DescribeTensor(SafetensorsType::kF32, shape) +
                        ", or BF16 or F16");
  }
  std::vector<float> values(static_cast<size_t>(rows * columns));
  ReadFloats(*view, 0, values);
  if (!std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); })) {
    return InvalidError(path + ": tensor '" + kPromptTensorName +
                        "' holds NaN or infinite numbers");
  }
  int64_t first = 0;
  for (const ParameterInfo& parameter : parameters) {
    WEFT_ASSIGN_OR_RETURN(const std::span<float> out, buffer(TensorOf(parameter)));
    const int64_t own = parameter.shape[1];
    for (int64_t r = 0; r < rows; ++r) {
      std::copy_n(values.begin() + r * columns + first, own, out.begin() + r * own);
    }
    first += own;
  }
  return OkStatus();
}

Result<PromptValues> PromptOf(const ModelSpec& model, const WeightValues& values) {
  const bool prefix = model.peft.method == "prefix";
  const std::vector<ParameterInfo> parameters = PromptParameters(model);
  const auto last = std::find_if(parameters.rbegin(), parameters.rend(),
                                 [](const ParameterInfo& each) { return each.block < 0; });
  Matrix made, encoded, weight;
  for (const ParameterInfo& parameter : parameters) {
    WEFT_ASSIGN_OR_RETURN(const std::span<const float> floats, values(TensorOf(parameter)));
    Matrix value{parameter.shape[0], parameter.matrix() ? parameter.shape[1] : 1, {}};
    WEFT_CHECK(std::ssize(floats) >= parameter.Elements(), "too few values for " + parameter.name);
    value.values.assign(floats.begin(), floats.begin() + parameter.Elements());
    if (parameter.read_directly) {
      // A table: the vectors, or what the layers read.
      (parameter.block >= 0 ? made : encoded) =
          parameter.block >= 0 ? Joined(made, value) : std::move(value);
      continue;
    }
    if (!parameter.bias) {
      weight = std::move(value);
      continue;
    }
    Matrix result = Linear(encoded, weight, value);
    if (parameter.block >= 0) {
      made = Joined(made, result);
      continue;
    }
    for (double& each : result.values) {
      if (prefix) {
        each = std::tanh(each);
      } else if (&parameter != &*last) {
        each = std::max(each, 0.0);
      }
    }
    encoded = std::move(result);
  }
  const Matrix& from = prefix ? made : encoded;
  return PromptValues{from.rows, from.columns, {from.values.begin(), from.values.end()}};
}

}  // namespace weft
