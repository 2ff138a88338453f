// ExportModel: a trained model as a folder that transformers loads.
#include <algorithm>
#include <cmath>
#include <utility>

#include "common/dtype.h"
#include "common/formats/huggingface.h"
#include "common/formats/huggingface_weights.h"
#include "common/formats/safetensors_index.h"
#include "common/formats/tokenizer_export.h"
#include "common/formats/two_of_four_bitmask.h"
#include "common/model/model_sizes.h"
#include "common/model/parameter_name.h"

namespace weft {
namespace {

constexpr uint64_t kMaxShardBytes = 5'000'000'000;

/// As config.json and --dtype call it.
const char* TypeInFiles(DType dtype) {
  return dtype == DType::kBF16 ? "bfloat16" : dtype == DType::kF16 ? "float16" : "float32";
}

SafetensorsType TypeOf(DType dtype) {
  return dtype == DType::kF32    ? SafetensorsType::kF32
         : dtype == DType::kBF16 ? SafetensorsType::kBF16
                                 : SafetensorsType::kF16;
}

/// Hands the engine's weight to a file in the file's layout.
Status Store(std::span<const float> values, const HuggingFaceTensor& tensor, SafetensorsType type,
             const ByteSink& sink) {
  if (!tensor.transposed) {
    return WriteFloats(type, tensor.name, values.first(ElementCount(tensor)), sink);
  }
  const auto rows = static_cast<uint64_t>(tensor.shape[1]);
  const auto columns = static_cast<uint64_t>(tensor.shape[0]);
  constexpr uint64_t kRows = 64;
  std::vector<float> block(kRows * columns);
  for (uint64_t row = 0; row < rows; row += kRows) {
    uint64_t count = std::min(kRows, rows - row);
    for (uint64_t column = 0; column < columns; ++column) {
      for (uint64_t r = 0; r < count; ++r) {
        block[r * columns + column] = values[column * rows + row + r];
      }
    }
    WEFT_RETURN_IF_ERROR(
        WriteFloats(type, tensor.name, std::span(block).first(count * columns), sink));
  }
  return OkStatus();
}

/// The weights as files have them; some under two names.
std::vector<HuggingFaceTensor> TensorsOfFile(const ModelSpec& model) {
  std::vector<HuggingFaceTensor> tensors = HuggingFaceTensors(model);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name != kDecoderBias) continue;
    tensors.push_back(tensors[i]);
    tensors.back().name = kPredictionBias;  // transformers 5 does not use it, but misses it
    break;
  }
  return tensors;
}

/// "" where `tensor` is no weight of a linear layer (nn.Linear of PyTorch).
std::string LinearModuleOf(const HuggingFaceTensor& tensor) {
  const bool linear = tensor.shape.size() == 2 && !tensor.transposed && tensor.file_shape.empty() &&
                      tensor.name.ends_with(".weight") &&
                      tensor.name.find("embed") == std::string::npos;
  return linear ? LayerOf(tensor.name) : "";
}

/// The tensors of a folder with compressed weights, and what its config.json says of them.
class CompressedWeights {
 public:
  CompressedWeights(const WeightValues& values, DType dtype) : values_(values), dtype_(dtype) {}

  /// Adds the three tensors of a weight that has two of four numbers; false where it has more.
  Result<bool> Add(const HuggingFaceTensor& tensor, std::vector<SafetensorsTensor>& tensors) {
    numbers_ += ElementCount(tensor);
    const std::string module = LinearModuleOf(tensor);
    if (module.empty()) return false;
    WEFT_ASSIGN_OR_RETURN(const std::span<const float> from, values_(tensor));
    if (!KeepsTwoOfFour(from.first(ElementCount(tensor)), tensor.shape[1])) {
      dense_.push_back(module);
      return false;
    }
    zeros_ += ElementCount(tensor) / 2;
    const TwoOfFourNames names = TwoOfFourNamesOf(module);
    const auto rows = static_cast<uint64_t>(tensor.shape[0]);
    const auto columns = static_cast<uint64_t>(tensor.shape[1]);
    const auto compressed = [&values = values_, tensor]() -> Result<TwoOfFourBitmask> {
      WEFT_ASSIGN_OR_RETURN(const std::span<const float> all, values(tensor));
      return CompressTwoOfFour(all.first(ElementCount(tensor)), tensor.shape[1]);
    };
    tensors.push_back({.name = names.shape,
                       .type = SafetensorsType::kI64,
                       .shape = {2, 1},
                       .bytes = {},
                       .produce = [shape = tensor.shape](const ByteSink& sink) {
                         return sink(std::as_bytes(std::span(shape)));
                       }});
    tensors.push_back(
        {.name = names.compressed,
         .type = TypeOf(dtype_),
         .shape = {rows, columns / 2},
         .bytes = {},
         .produce = [compressed, tensor, dtype = dtype_](const ByteSink& sink) -> Status {
           WEFT_ASSIGN_OR_RETURN(const TwoOfFourBitmask made, compressed());
           return WriteFloats(TypeOf(dtype), tensor.name, made.values, sink);
         }});
    tensors.push_back({.name = names.bitmask,
                       .type = SafetensorsType::kU8,
                       .shape = {rows, (columns + 7) / 8},
                       .bytes = {},
                       .produce = [compressed](const ByteSink& sink) -> Status {
                         WEFT_ASSIGN_OR_RETURN(const TwoOfFourBitmask made, compressed());
                         return sink(std::as_bytes(std::span(made.bitmask)));
                       }});
    return true;
  }

  /// kInvalid where nothing was compressed.
  Result<Json> Config() const {
    if (zeros_ == 0) {
      return InvalidError(
          "no linear layer has two of four weights in its rows, so there is nothing to compress; "
          "hint: --format hf, or a llama, bert or vit of train.sparsity before its dense steps "
          "(dense_share)");
    }
    return Json{{"quant_method", "compressed-tensors"},
                {"format", "dense"},
                {"sparsity_config",
                 {{"format", "sparse-24-bitmask"},
                  {"sparsity_structure", "2:4"},
                  {"global_sparsity", static_cast<double>(zeros_) / static_cast<double>(numbers_)},
                  {"targets", {"Linear"}},
                  {"ignore", dense_}}}};
  }

 private:
  const WeightValues& values_;
  DType dtype_;
  uint64_t numbers_ = 0, zeros_ = 0;
  std::vector<std::string> dense_;  ///< Linear layers.
};

/// Settings of the import, with the tokens of this tokenizer.
Json GenerationConfig(const Json& imported, const TokenizerExport& tokens) {
  Json generation = imported;
  generation.erase("transformers_version");
  if (imported.empty()) generation["_from_model_config"] = true;
  generation["bos_token_id"] = tokens.bos_token_id;
  generation["eos_token_id"] = tokens.eos_token_id;
  if (!tokens.pad_token_id.is_null()) generation["pad_token_id"] = tokens.pad_token_id;
  return generation;
}

}  // namespace

Status WriteFloats(SafetensorsType type, const std::string& name, std::span<const float> values,
                   const ByteSink& sink) {
  if (type == SafetensorsType::kF32) return sink(std::as_bytes(values));
  const bool brain = type == SafetensorsType::kBF16;
  constexpr size_t kElements = 1 << 16;
  std::vector<uint16_t> narrow(std::min(values.size(), kElements));
  for (size_t first = 0; first < values.size(); first += kElements) {
    const auto part = values.subspan(first, std::min(kElements, values.size() - first));
    for (size_t i = 0; i < part.size(); ++i) {
      narrow[i] = brain ? ToBFloat16(part[i]).bits : ToHalf(part[i]).bits;
      const float back = brain ? ToFloat(BFloat16{narrow[i]}) : ToFloat(Half{narrow[i]});
      if (std::isfinite(back) || !std::isfinite(part[i])) continue;
      return InvalidError("tensor " + name + " holds " + std::to_string(part[i]) + ", which " +
                          (brain ? "bfloat16" : "float16") +
                          " does not hold; hint: --dtype float32 or bfloat16");
    }
    WEFT_RETURN_IF_ERROR(sink(std::as_bytes(std::span(narrow).first(part.size()))));
  }
  return OkStatus();
}

Status ExportModel(Env& env, const std::string& folder, const ModelSpec& model,
                   const WeightValues& values, const ExportOptions& options) {
  WEFT_ASSIGN_OR_RETURN(Json config, ModelToConfig(model, options.classes));
  config["torch_dtype"] = TypeInFiles(options.dtype);
  TokenizerExport tokens;
  if (options.tokenizer != nullptr) {
    WEFT_ASSIGN_OR_RETURN(tokens, DescribeTokenizer(*options.tokenizer, model, options.imported));
  }
  std::vector<SafetensorsTensor> tensors;
  CompressedWeights compressed(values, options.dtype);
  for (const HuggingFaceTensor& tensor : TensorsOfFile(model)) {
    if (options.compresses) {
      WEFT_ASSIGN_OR_RETURN(const bool added, compressed.Add(tensor, tensors));
      if (added) continue;
    }
    SafetensorsTensor entry;
    entry.name = tensor.name;
    entry.type = TypeOf(options.dtype);
    entry.shape = FileShape(tensor);
    entry.produce = [&values, tensor, dtype = options.dtype](const ByteSink& sink) -> Status {
      WEFT_ASSIGN_OR_RETURN(std::span<const float> from, values(tensor));
      WEFT_CHECK(from.size() >= ElementCount(tensor), "too few values for " + tensor.name);
      return Store(from, tensor, TypeOf(dtype), sink);
    };
    tensors.push_back(std::move(entry));
  }
  if (options.compresses) {
    WEFT_ASSIGN_OR_RETURN(config["quantization_config"], compressed.Config());
  }
  WEFT_RETURN_IF_ERROR(env.CreateDirs(folder));
  WEFT_RETURN_IF_ERROR(WriteSafetensorsFolder(env, folder, std::move(tensors), kMaxShardBytes));
  for (const auto& [name, content] : tokens.files) {
    WEFT_RETURN_IF_ERROR(WriteFileAtomic(env, JoinPath(folder, name), content));
  }
  if (!options.preprocessor_json.empty()) {
    WEFT_RETURN_IF_ERROR(WriteFileAtomic(env, JoinPath(folder, "preprocessor_config.json"),
                                         options.preprocessor_json));
  }
  if (HeadOf(model) == "causal_lm") {
    const Json generation = GenerationConfig(options.imported.generation_config, tokens);
    WEFT_RETURN_IF_ERROR(WriteFileAtomic(env, JoinPath(folder, "generation_config.json"),
                                         generation.dump(2) + "\n"));
  }
  if (model.family != "vit") {
    config["bos_token_id"] = tokens.bos_token_id;
    config["eos_token_id"] = tokens.eos_token_id;
    config["pad_token_id"] = tokens.pad_token_id;
  }
  return WriteFileAtomic(env, JoinPath(folder, "config.json"), config.dump(2) + "\n");
}

}  // namespace weft
