#include "common/model/model_counts.h"

#include <algorithm>

#include "common/model/parameter_list.h"

namespace weft {

namespace {

/// Multiply-adds of a token with the scores and values of one layer, on average over the sequence:
/// twice the keys it sees, for each column.
double AttentionPerLayer(const ModelShape& shape, int64_t sequence_length) {
  const auto length = static_cast<double>(sequence_length);
  const auto window = static_cast<double>(shape.spec.sliding_window);
  const bool windowed = window > 0 && window < length;
  const double twice_the_keys = windowed ? 2 * window - window * window / length : length;
  return static_cast<double>(shape.spec.width) * twice_the_keys;
}

/// Layers whose weights of one kind get a gradient.
int64_t LayersTraining(const ModelShape& shape, ParameterKind kind, bool output) {
  int64_t layers = 0;
  for (int64_t layer = 0; layer < shape.spec.layers; ++layer) {
    for (const ParameterInfo& parameter :
         BlockParameters(shape.spec, BlockOfLayer(shape.spec, layer))) {
      const bool writes = parameter.matrix() && IsOutputProjection(parameter);
      if (parameter.kind != kind || !parameter.matrix() || writes != output) continue;
      if (!IsTrained(shape.spec, parameter)) continue;
      ++layers;
      break;
    }
  }
  return layers;
}

}  // namespace

double ForwardFlopsPerToken(const ModelShape& shape, int64_t sequence_length) {
  return 2.0 * static_cast<double>(shape.used) +
         2.0 * static_cast<double>(shape.spec.layers) * AttentionPerLayer(shape, sequence_length);
}

double TrainingFlopsPerToken(const ModelShape& shape, int64_t sequence_length) {
  const auto layers = static_cast<double>(shape.spec.layers - shape.first_trained_layer);
  return ForwardFlopsPerToken(shape, sequence_length) +
         2.0 * static_cast<double>(shape.used_trained + shape.used_backward) +
         4.0 * layers * AttentionPerLayer(shape, sequence_length);
}

int64_t LogitsChunkRows(const ModelShape& shape, int64_t tokens, int64_t element_bytes) {
  constexpr int64_t kChunkBytes = int64_t{64} << 20;
  constexpr int64_t kTile = 32;
  const int64_t fitting =
      std::max<int64_t>(kChunkBytes / (shape.PaddedVocabulary() * element_bytes), kTile);
  const int64_t chunks = (tokens + fitting - 1) / fitting;
  const int64_t even = (tokens + chunks - 1) / chunks;
  return (even + kTile - 1) / kTile * kTile;
}

std::vector<Gemm> WeightGemms(const ModelShape& shape, int64_t tokens, int64_t element_bytes) {
  const ModelSpec& model = shape.spec;
  std::vector<Gemm> gemms;
  // y [rows, out] = x [rows, in] Wᵀ and the two gradients of it, each so many times.
  auto add = [&](std::string_view name, int64_t rows, int64_t in, int64_t out, int64_t forward,
                 int64_t input, int64_t weight) {
    gemms.push_back({name, GemmPass::kForward, rows, out, in, forward});
    if (input > 0) gemms.push_back({name, GemmPass::kInputGradient, rows, in, out, input});
    if (weight > 0) gemms.push_back({name, GemmPass::kWeightGradient, out, in, rows, weight});
  };
  const int64_t c = model.width, f = MlpWidth(model), e = EmbeddingWidth(model);
  const int64_t backward = model.layers - shape.first_trained_layer;
  auto add_in_blocks = [&](std::string_view name, int64_t in, int64_t out, ParameterKind kind,
                           bool output) {
    add(name, tokens, in, out, model.layers, backward, LayersTraining(shape, kind, output));
  };
  const int64_t once = shape.first_trained_layer == 0 ? 1 : 0;
  if (FactorisedEmbedding(model)) add("embedding in", tokens, e, c, 1, once, once);
  add_in_blocks("qkv", c, c + 2 * KvWidth(model), ParameterKind::kAttention, false);
  add_in_blocks("attention output", c, c, ParameterKind::kAttention, true);
  add_in_blocks("mlp up", c, MlpInputs(model) * f, ParameterKind::kMlp, false);
  add_in_blocks("mlp down", f, c, ParameterKind::kMlp, true);
  const bool narrow = FactorisedEmbedding(model) && !model.untied_classifier;
  if (narrow) add("embedding out", tokens, c, e, 1, 1, 1);
  const int64_t chunk = std::min(LogitsChunkRows(shape, tokens, element_bytes), tokens);
  const int64_t trained = ClassifierIsTrained(model) ? 1 : 0;
  const int64_t inputs = shape.used_trained > 0 ? 1 : 0;
  auto add_classifier = [&](int64_t rows, int64_t count) {
    add("classifier", rows, narrow ? e : c, shape.PaddedVocabulary(), count, count * inputs,
        count * trained);
  };
  add_classifier(chunk, tokens / chunk);
  if (tokens % chunk != 0) add_classifier(tokens % chunk, 1);
  return gemms;
}

}  // namespace weft
