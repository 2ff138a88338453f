// ExportModel: a trained model as a folder that transformers loads.
#include <algorithm>
#include <cmath>
#include <utility>

#include "common/dtype.h"
#include "common/formats/huggingface.h"
#include "common/formats/huggingface_weights.h"
#include "common/formats/safetensors_index.h"
#include "common/formats/tokenizer_export.h"
#include "common/model/model_sizes.h"

namespace weft {
namespace {

constexpr uint64_t kMaxShardBytes = 5'000'000'000;

/// As config.json and --dtype call it.
const char* TypeInFiles(DType dtype) {
  return dtype == DType::kBF16 ? "bfloat16" : dtype == DType::kF16 ? "float16" : "float32";
}

/// Hands floats to a file in its type. kInvalid when one is past its range.
Status WriteAs(DType dtype, const std::string& name, std::span<const float> values,
               const ByteSink& sink) {
  if (dtype == DType::kF32) return sink(std::as_bytes(values));
  constexpr size_t kElements = 1 << 16;
  std::vector<uint16_t> narrow(std::min(values.size(), kElements));
  for (size_t first = 0; first < values.size(); first += kElements) {
    const auto part = values.subspan(first, std::min(kElements, values.size() - first));
    for (size_t i = 0; i < part.size(); ++i) {
      const bool brain = dtype == DType::kBF16;
      narrow[i] = brain ? ToBFloat16(part[i]).bits : ToHalf(part[i]).bits;
      const float back = brain ? ToFloat(BFloat16{narrow[i]}) : ToFloat(Half{narrow[i]});
      if (std::isfinite(back) || !std::isfinite(part[i])) continue;
      return InvalidError("tensor " + name + " holds " + std::to_string(part[i]) + ", which " +
                          std::string(TypeInFiles(dtype)) +
                          " does not hold; hint: --dtype float32 or bfloat16");
    }
    WEFT_RETURN_IF_ERROR(sink(std::as_bytes(std::span(narrow).first(part.size()))));
  }
  return OkStatus();
}

/// Hands the engine's weight to a file in the file's layout.
Status Store(std::span<const float> values, const HuggingFaceTensor& tensor, DType dtype,
             const ByteSink& sink) {
  if (!tensor.transposed) {
    return WriteAs(dtype, tensor.name, values.first(ElementCount(tensor)), sink);
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
        WriteAs(dtype, tensor.name, std::span(block).first(count * columns), sink));
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

Status ExportModel(Env& env, const std::string& folder, const ModelSpec& model,
                   const WeightValues& values, const ExportOptions& options) {
  WEFT_ASSIGN_OR_RETURN(Json config, ModelToConfig(model, options.classes));
  config["torch_dtype"] = TypeInFiles(options.dtype);
  TokenizerExport tokens;
  if (options.tokenizer != nullptr) {
    WEFT_ASSIGN_OR_RETURN(tokens, DescribeTokenizer(*options.tokenizer, model, options.imported));
  }
  WEFT_RETURN_IF_ERROR(env.CreateDirs(folder));
  std::vector<SafetensorsTensor> tensors;
  for (const HuggingFaceTensor& tensor : TensorsOfFile(model)) {
    SafetensorsTensor entry;
    entry.name = tensor.name;
    entry.type = options.dtype == DType::kF32    ? SafetensorsType::kF32
                 : options.dtype == DType::kBF16 ? SafetensorsType::kBF16
                                                 : SafetensorsType::kF16;
    entry.shape = FileShape(tensor);
    entry.produce = [&values, tensor, dtype = options.dtype](const ByteSink& sink) -> Status {
      WEFT_ASSIGN_OR_RETURN(std::span<const float> from, values(tensor));
      WEFT_CHECK(from.size() >= ElementCount(tensor), "too few values for " + tensor.name);
      return Store(from, tensor, dtype, sink);
    };
    tensors.push_back(std::move(entry));
  }
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
