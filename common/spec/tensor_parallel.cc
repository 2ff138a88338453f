#include "common/spec/tensor_parallel.h"

#include <string>

#include "common/model/technique_cost.h"
#include "common/spec/padded_length.h"

namespace weft {
namespace {

constexpr char kDegree[] = "tensor parallelism of degree ";

Status CheckDivides(const std::string& name, int64_t size, int64_t degree) {
  if (size % degree == 0) return OkStatus();
  int64_t next = degree;
  while (size % next != 0) --next;
  return InvalidError(kDegree + std::to_string(degree) + " needs " + name +
                      " in equal parts, and it is " + std::to_string(size) +
                      "; hint: a degree of " + std::to_string(next));
}

}  // namespace

Status CheckTensorParallel(const ModelSpec& model, int64_t degree, int64_t rows) {
  if (model.width % rows != 0) {
    return InvalidError("a grid of resources.tensor_rows " + std::to_string(rows) +
                        " needs model.width in equal parts, and it is " +
                        std::to_string(model.width) + "; hint: 1 or another divisor of it");
  }
  degree /= rows;
  if (degree == 1 && rows == 1) return OkStatus();
  WEFT_RETURN_IF_ERROR(CheckDivides("model.heads", model.heads, degree));
  if (model.kv_heads > 0) {
    WEFT_RETURN_IF_ERROR(CheckDivides("model.kv_heads", model.kv_heads, degree));
  }
  WEFT_RETURN_IF_ERROR(CheckDivides("the width of the MLP", MlpWidth(model), degree));
  if (model.vocab_size > 0 && model.vocab_size < degree) {
    return InvalidError(kDegree + std::to_string(degree) +
                        " needs a token for each rank, and there are " +
                        std::to_string(model.vocab_size));
  }
  for (const TechniqueCost* technique : TechniqueCosts()) {
    WEFT_RETURN_IF_ERROR(technique->CheckTensorParallel(model, degree));
  }
  return OkStatus();
}

Status CheckTensorParallel(const JobSpec& job, int64_t degree, bool sequence_parallel,
                           int64_t rows) {
  if (degree % rows != 0) {
    return InvalidError("resources.tensor_rows " + std::to_string(rows) +
                        " must divide resources.tensor_parallel, which is " +
                        std::to_string(degree));
  }
  if (degree == 1 && rows == 1) {
    if (!sequence_parallel) return OkStatus();
    return InvalidError(
        "sequence parallelism is between ranks of tensor parallelism, and there "
        "is one; hint: resources.tensor_parallel");
  }
  const bool imported = !job.model.import_path.empty();
  if (!imported) WEFT_RETURN_IF_ERROR(CheckTensorParallel(job.model, degree, rows));
  // A rank has its own chunks of each sequence.
  const int64_t ranks = degree * job.resources.context_parallel;
  if (!sequence_parallel) return OkStatus();
  if (PadsToTheLongest(job.data) && kPaddedLengthMultiple % ranks != 0) {
    return InvalidError("sequence parallelism needs sequences of a length that is a multiple of " +
                        std::to_string(ranks) + ", and data.batching " + job.data.batching +
                        " pads to multiples of " + std::to_string(kPaddedLengthMultiple) +
                        " tokens; hint: data.batching pad_fixed");
  }
  if (imported || SequenceLength(job) % ranks == 0) return OkStatus();
  return InvalidError("sequence parallelism needs sequences of a length that is a multiple of " +
                      std::to_string(ranks) + "; hint: train.sequence_length");
}

}  // namespace weft
