#include "common/model/model_shape.h"

namespace weft {

ModelShape ShapeOf(const JobSpec& job) {
  constexpr int64_t kGpt2Vocabulary = 50304;
  ModelShape shape{job.model.layers,    job.model.width,      job.model.heads,
                   MlpWidth(job.model), job.model.vocab_size, job.model.context};
  if (shape.vocab_size == 0) {
    shape.vocab_size =
        job.data.tokenizer.path.empty() ? job.data.tokenizer.vocab_size : kGpt2Vocabulary;
    shape.vocab_size = shape.PaddedVocabulary();
  }
  return shape;
}

}  // namespace weft
