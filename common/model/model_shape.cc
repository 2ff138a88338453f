#include "common/model/model_shape.h"

#include "common/model/parameter_list.h"

namespace weft {
namespace {

int64_t& CountOf(ParameterCounts& counts, ParameterKind kind) {
  switch (kind) {
    case ParameterKind::kTokenEmbedding:
      return counts.token_embedding;
    case ParameterKind::kPositionEmbedding:
      return counts.position_embedding;
    case ParameterKind::kEmbeddingProjection:
      return counts.embedding_projection;
    case ParameterKind::kAttention:
      return counts.attention;
    case ParameterKind::kMlp:
      return counts.mlp;
    case ParameterKind::kClassifier:
      return counts.classifier;
    case ParameterKind::kBranchScale:
      return counts.branch_scales;
    case ParameterKind::kNorm:
      break;
  }
  return counts.norms;
}

}  // namespace

ModelShape::ModelShape(const ModelSpec& model) : spec(model) {
  const int64_t uses_of_block = spec.layers / DistinctBlocks(spec);
  bool backward = false;  // from the first trained parameter on
  first_trained_layer = spec.layers;
  for (const ParameterInfo& parameter : ParametersOf(spec)) {
    const bool table = parameter.kind == ParameterKind::kTokenEmbedding;
    const bool in_vocabulary =
        table || (parameter.kind == ParameterKind::kClassifier && parameter.matrix());
    const bool classifies = in_vocabulary && (table != spec.untied_classifier);
    const int64_t elements = parameter.Elements();
    const int64_t in_memory = in_vocabulary ? PaddedVocabulary() * parameter.shape[1] : elements;
    const int64_t uses = parameter.block >= 0 ? uses_of_block : table && !classifies ? 0 : 1;
    const bool is_trained = IsTrained(spec, parameter);
    if (is_trained && !backward) {
      backward = true;
      if (parameter.block >= 0) {
        first_trained_layer = parameter.block * uses_of_block;
      } else if (table || parameter.kind == ParameterKind::kPositionEmbedding ||
                 parameter.name.starts_with("embedding_in")) {
        first_trained_layer = 0;
      }
    }
    CountOf(counts, parameter.kind) += elements;
    stored += in_memory;
    if (parameter.matrix()) stored_matrices += in_memory;
    used += uses * elements;
    if (backward || classifies) used_backward += uses * elements;
    if (is_trained) {
      trained += elements;
      stored_trained += in_memory;
      used_trained += uses * elements;
    }
    const bool looked_up =
        parameter.kind == ParameterKind::kPositionEmbedding || (table && !classifies);
    if (parameter.matrix() && !looked_up) packed += in_memory;
  }
}

ModelShape ShapeOf(const JobSpec& job) {
  constexpr int64_t kGpt2Vocabulary = 50304;
  ModelSpec model = job.model;
  if (model.vocab_size == 0) {
    model.vocab_size = PaddedVocabulary(
        job.data.tokenizer.path.empty() ? job.data.tokenizer.vocab_size : kGpt2Vocabulary);
  }
  return ModelShape(model);
}

}  // namespace weft
