#include "worker/engine/nn/initialization.h"

#include <cmath>
#include <string>
#include <string_view>

#include "common/check.h"
#include "common/model/model_sizes.h"

namespace weft::engine {
namespace {

// What the deviation of a weight follows.
enum class Size : uint8_t {
  kZero,
  kRange,         // initializer_range
  kXavier,        // sqrt(2 / (in + out)) (Glorot and Bengio 2010)
  kKaiming,       // sqrt(2 / in) (He et al. 2015, arXiv 1502.01852)
  kInverseWidth,  // 1 / sqrt(columns)
};

// And what of the number of layers it is multiplied by.
enum class Depth : uint8_t {
  kNone,
  kBranches,     // 1 / sqrt(2 layers)
  kTFixup,       // 0.67 layers^(-1/4) (Huang et al. 2020, "Improving Transformer Optimization
                 // Through Better Initialization", section 4)
  kTFixupTable,  // (9 layers)^(-1/4)
};

struct Start {
  Distribution distribution = Distribution::kNormal;
  Size size = Size::kRange;
  Depth depth = Depth::kNone;
};

struct Method {
  std::string_view name;
  Start tables;      // embeddings of tokens and positions
  Start matrices;    // queries, keys, and those outside attention and MLP
  Start inner;       // values and what enters the MLP: the straight way through a branch
  Start outputs;     // what ends a branch
  Start classifier;  // where it is not the token embedding
  double branch_scale = 1;
};

constexpr Start kRange{};
constexpr Start kCut{Distribution::kTruncatedNormal};
constexpr Start kRangeByDepth{Distribution::kNormal, Size::kRange, Depth::kBranches};
constexpr Start kZero{Distribution::kNormal, Size::kZero};
constexpr Start kTable{Distribution::kNormal, Size::kInverseWidth};
constexpr Start kXavierU{Distribution::kUniform, Size::kXavier};
constexpr Start kXavierN{Distribution::kNormal, Size::kXavier};
constexpr Start kKaimingU{Distribution::kUniform, Size::kKaiming};
constexpr Start kKaimingN{Distribution::kNormal, Size::kKaiming};
constexpr Start kXavierByDepth{Distribution::kUniform, Size::kXavier, Depth::kBranches};
constexpr Start kXavierTFixup{Distribution::kUniform, Size::kXavier, Depth::kTFixup};
constexpr Start kTableTFixup{Distribution::kNormal, Size::kInverseWidth, Depth::kTFixupTable};

constexpr Method kMethods[] = {
    // name, tables, matrices, inner, outputs, classifier, branch scale
    {"gpt2", kRange, kRange, kRange, kRangeByDepth, kRange},
    {"normal", kRange, kRange, kRange, kRange, kRange},
    {"truncated_normal", kCut, kCut, kCut, kCut, kCut},
    {"xavier_uniform", kRange, kXavierU, kXavierU, kXavierU, kXavierU},
    {"xavier_normal", kRange, kXavierN, kXavierN, kXavierN, kXavierN},
    {"kaiming_uniform", kRange, kKaimingU, kKaimingU, kKaimingU, kKaimingU},
    {"kaiming_normal", kRange, kKaimingN, kKaimingN, kKaimingN, kKaimingN},
    // Zhang et al. 2019, arXiv 1901.09321: two layers a branch.
    {"fixup", kTable, kXavierU, kXavierByDepth, kZero, kZero},
    {"t_fixup", kTableTFixup, kXavierU, kXavierTFixup, kXavierTFixup, kTable},
    // Bachlechner et al. 2020, arXiv 2003.04887.
    {"rezero", kTable, kXavierU, kXavierU, kXavierU, kTable, 0},
    // De and Smith 2020, arXiv 2002.10444.
    {"skipinit", kRange, kRange, kRange, kRange, kRange, 0},
    // Touvron et al. 2021, arXiv 2103.17239; the scale is a field of the job.
    {"layer_scale", kCut, kCut, kCut, kCut, kCut},
    {"mup", kRange, kRange, kRange, kRangeByDepth, kRange},
};

const Method& MethodOf(const ModelSpec& spec) {
  const std::string name = InitializationOf(spec);
  for (const Method& method : kMethods) {
    if (method.name == name) return method;
  }
  WEFT_CHECK(false, "unknown initialization " + name);
  return kMethods[0];
}

double WidthRatio(const ModelSpec& spec) {
  if (InitializationOf(spec) != "mup") return 1;
  return static_cast<double>(spec.width) / static_cast<double>(spec.initialization.base_width);
}

double DepthFactor(Depth depth, const ModelSpec& spec) {
  const auto layers = static_cast<double>(spec.layers);
  switch (depth) {
    case Depth::kBranches:
      return 1 / std::sqrt(2 * layers);
    case Depth::kTFixup:
      return 0.67 * std::pow(layers, -0.25);
    case Depth::kTFixupTable:
      return std::pow(9 * layers, -0.25);
    case Depth::kNone:
      break;
  }
  return 1;
}

// Deviation of a matrix [out, in]; `outputs` where several matrices are stacked in one, of one of
// them.
double Deviation(Size size, const ModelSpec& spec, double outputs, double in) {
  switch (size) {
    case Size::kRange:
      return spec.initializer_range;
    case Size::kXavier:
      return std::sqrt(2 / (in + outputs));
    case Size::kKaiming:
      return std::sqrt(2 / in);
    case Size::kInverseWidth:
      return 1 / std::sqrt(in);
    case Size::kZero:
      break;
  }
  return 0;
}

Initializer Draw(const Start& start, const ModelSpec& spec, const Parameter& parameter) {
  const bool stacked = parameter.role == ParameterRole::kQueriesKeysValues;
  const Shape shape = parameter.layer_shape();
  const int64_t outputs = stacked ? spec.width : shape[0];
  const double deviation =
      Deviation(start.size, spec, static_cast<double>(outputs), static_cast<double>(shape[-1])) *
      DepthFactor(start.depth, spec);
  return {.mean = 0, .deviation = deviation, .distribution = start.distribution};
}

// The straight way through a branch differs from the rest by depth alone.
Initializer DrawQueriesKeysValues(const Method& method, const ModelSpec& spec,
                                  const Parameter& parameter) {
  Initializer initializer = Draw(method.matrices, spec, parameter);
  initializer.tail_rows = KvWidth(spec);
  initializer.tail_factor = DepthFactor(method.inner.depth, spec);
  return initializer;
}

Initializer InitializerOf(const Method& method, const ModelSpec& spec, const Parameter& parameter) {
  if (parameter.bias) return {};
  switch (parameter.role) {
    case ParameterRole::kTokenEmbedding:
    case ParameterRole::kPositionEmbedding:
      return Draw(method.tables, spec, parameter);
    case ParameterRole::kEmbeddingProjection:
    case ParameterRole::kHeadTransform:
    case ParameterRole::kRouter:
    case ParameterRole::kQueriesKeys:
      return Draw(method.matrices, spec, parameter);
    case ParameterRole::kQueriesKeysValues:
      return DrawQueriesKeysValues(method, spec, parameter);
    case ParameterRole::kValues:
    case ParameterRole::kMlpUp:
      return Draw(method.inner, spec, parameter);
    case ParameterRole::kAttentionOutput:
    case ParameterRole::kMlpDown:
      return Draw(method.outputs, spec, parameter);
    case ParameterRole::kClassifier:
      return Draw(method.classifier, spec, parameter);
    case ParameterRole::kNorm:
    case ParameterRole::kHeadNorm:
      return {.mean = 1};
    case ParameterRole::kAttentionScale:
    case ParameterRole::kMlpScale:
      return {.mean = method.name == "layer_scale" ? spec.initialization.layer_scale
                                                   : method.branch_scale};
  }
  return {};
}

}  // namespace

void SetStarts(const ModelSpec& spec, ParameterList& parameters) {
  const Method& method = MethodOf(spec);
  const double ratio = WidthRatio(spec);
  for (int64_t i = 0; i < parameters.size(); ++i) {
    Initializer initializer = InitializerOf(method, spec, parameters[i]);
    double learning_rate_scale = 1;
    if (parameters[i].block_matrix()) {
      initializer.deviation /= std::sqrt(ratio);
      learning_rate_scale = 1 / ratio;
    }
    parameters.SetStart(i, initializer, learning_rate_scale);
  }
}

double AttentionLogitScale(const ModelSpec& spec) {
  return 1 / std::sqrt(WidthRatio(spec));
}

double OutputScale(const ModelSpec& spec) {
  return 1 / WidthRatio(spec);
}

}  // namespace weft::engine
