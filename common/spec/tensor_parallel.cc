#include "common/spec/tensor_parallel.h"

#include <string>

namespace weft {
namespace {

constexpr char kDegree[] = "tensor parallelism of degree ";

std::string Text(int64_t value) {
  return std::to_string(value);
}

Status CheckDivides(const std::string& name, int64_t size, int64_t degree) {
  if (size % degree == 0) return OkStatus();
  int64_t next = degree;
  while (size % next != 0) --next;
  return InvalidError(kDegree + Text(degree) + " needs " + name + " in equal parts, and it is " +
                      Text(size) + "; hint: a degree of " + Text(next));
}

}  // namespace

Status CheckTensorParallel(const ModelSpec& model, int64_t degree) {
  if (degree == 1) return OkStatus();
  if (model.family != "gpt2" && model.family != "llama") {
    return InvalidError(kDegree + Text(degree) + " is not available with model.family " +
                        model.family + "; hint: gpt2, llama, or data parallelism alone");
  }
  if (model.over_parameterization.kind != "none") {
    return InvalidError(kDegree + Text(degree) +
                        " does not go with model.over_parameterization, whose factors are of whole "
                        "matrices");
  }
  WEFT_RETURN_IF_ERROR(CheckDivides("model.heads", model.heads, degree));
  if (model.kv_heads > 0) {
    WEFT_RETURN_IF_ERROR(CheckDivides("model.kv_heads", model.kv_heads, degree));
  }
  WEFT_RETURN_IF_ERROR(CheckDivides("the width of the MLP", MlpWidth(model), degree));
  if (model.vocab_size > 0 && model.vocab_size < degree) {
    return InvalidError(kDegree + Text(degree) + " needs a token for each rank, and there are " +
                        Text(model.vocab_size));
  }
  return OkStatus();
}

Status CheckTensorParallel(const JobSpec& job, int64_t degree, bool sequence_parallel) {
  if (degree == 1) {
    if (!sequence_parallel) return OkStatus();
    return InvalidError(
        "sequence parallelism is between ranks of tensor parallelism, and there "
        "is one; hint: resources.tensor_parallel");
  }
  const bool imported = !job.model.import_path.empty();
  if (!imported) WEFT_RETURN_IF_ERROR(CheckTensorParallel(job.model, degree));
  if (job.train.precision == "fp8" || job.train.precision == "bf16_pure") {
    return InvalidError(kDegree + Text(degree) + " is not available in train.precision " +
                        job.train.precision + "; hint: bf16");
  }
  const std::string& optimizer = job.optimizer.name;
  if (!UpdatesElementwise(job.optimizer)) {
    return InvalidError("optimizer.name " + optimizer + " looks at whole matrices, of which " +
                        kDegree + Text(degree) + " leaves a part on each rank; hint: adamw");
  }
  if (job.train.gradient_noise_scale) {
    return InvalidError(kDegree + Text(degree) +
                        " does not go with train.gradient_noise_scale; hint: measure it with data "
                        "parallelism alone");
  }
  if (!sequence_parallel) return OkStatus();
  if (job.data.batching == "pad_dynamic" || (!imported && SequenceLength(job) % degree != 0)) {
    return InvalidError("sequence parallelism needs sequences of a length that is a multiple of " +
                        Text(degree) +
                        "; hint: train.sequence_length, and no data.batching "
                        "pad_dynamic");
  }
  return OkStatus();
}

}  // namespace weft
