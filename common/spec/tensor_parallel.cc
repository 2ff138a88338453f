#include "common/spec/tensor_parallel.h"

#include <string>
#include <utility>

#include "common/spec/model_family.h"

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

std::string GridOf(int64_t rows) {
  return "a grid of resources.tensor_rows " + Text(rows);
}

// Of several rows: features of the residual stream are dealt out to these.
Status CheckGrid(const ModelSpec& model, int64_t rows) {
  if (model.width % rows != 0) {
    return InvalidError(GridOf(rows) + " needs model.width in equal parts, and it is " +
                        Text(model.width) + "; hint: 1 or another divisor of it");
  }
  const std::pair<const char*, bool> others[] = {
      {"model.dropout, whose masks are of whole rows (model.attention_dropout is possible); hint: "
       "0",
       DropoutOf(model) > 0},
      {"model.embedding_width; hint: 0", model.embedding_width > 0},
      {"an initialization that scales residual branches; hint: initialization.method gpt2",
       BranchScalingOf(model) != BranchScaling::kNone},
      {"model.experts; hint: 0", model.experts > 0},
  };
  for (const auto& [name, asked] : others) {
    if (asked) return InvalidError(GridOf(rows) + " does not go with " + name);
  }
  return OkStatus();
}

// What the ranks of such a grid do not do yet.
Status CheckGrid(const JobSpec& job, int64_t degree, int64_t rows) {
  const ResourceSpec& resources = job.resources;
  if (degree % rows != 0) {
    return InvalidError("resources.tensor_rows " + Text(rows) +
                        " must divide resources.tensor_parallel, which is " + Text(degree));
  }
  const std::pair<const char*, bool> others[] = {
      {"resources.sequence_parallel", resources.sequence_parallel},
      {"resources.pipeline_parallel", resources.pipeline_parallel > 1},
      {"resources.context_parallel", resources.context_parallel > 1},
      {"resources.expert_parallel", resources.expert_parallel > 1},
      {"train.precision fp8", job.train.precision == "fp8"},
  };
  for (const auto& [name, asked] : others) {
    if (asked) return InvalidError(GridOf(rows) + " does not go with " + name + " yet");
  }
  return OkStatus();
}

}  // namespace

Status CheckTensorParallel(const ModelSpec& model, int64_t degree, int64_t rows) {
  if (rows > 1) {
    WEFT_RETURN_IF_ERROR(CheckGrid(model, rows));
    degree /= rows;
  }
  if (degree == 1 && rows == 1) return OkStatus();
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

Status CheckTensorParallel(const JobSpec& job, int64_t degree, bool sequence_parallel,
                           int64_t rows) {
  if (rows > 1) WEFT_RETURN_IF_ERROR(CheckGrid(job, degree, rows));
  if (degree == 1 && rows == 1) {
    if (!sequence_parallel) return OkStatus();
    return InvalidError(
        "sequence parallelism is between ranks of tensor parallelism, and there "
        "is one; hint: resources.tensor_parallel");
  }
  const bool imported = !job.model.import_path.empty();
  if (!imported) WEFT_RETURN_IF_ERROR(CheckTensorParallel(job.model, degree, rows));
  if (job.train.precision == "bf16_pure") {
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
  // Of each sequence, a rank's own chunks.
  const int64_t ranks = degree * job.resources.context_parallel;
  if (job.data.batching == "pad_dynamic" || (!imported && SequenceLength(job) % ranks != 0)) {
    return InvalidError("sequence parallelism needs sequences of a length that is a multiple of " +
                        Text(ranks) +
                        "; hint: train.sequence_length, and no data.batching "
                        "pad_dynamic");
  }
  return OkStatus();
}

}  // namespace weft
