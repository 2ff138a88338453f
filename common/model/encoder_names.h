#pragma once

#include <cstdint>
#include <string>

#include "common/spec/model_spec.h"

namespace weft {

/// The layers of a block of a bert or a vit, by their whole names.
struct EncoderBlockNames {
  std::string query, key, value, attention_output, attention_norm;
  std::string up, down, mlp_norm;
};

EncoderBlockNames BertBlockNamesOf(int64_t index);

/// As transformers 4 names them or, where HasTransformers5Names, as transformers 5 does.
EncoderBlockNames VitBlockNamesOf(const ModelSpec& model, int64_t index);

/// The name in files of the network of a parameter of block `index` of a vit. Both versions of
/// transformers write the names of 4 there.
std::string VitNameInFile(const ModelSpec& model, int64_t index, const std::string& parameter);

}  // namespace weft
