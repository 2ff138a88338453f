#include "common/spec/context_parallel.h"

#include <algorithm>

namespace weft {
namespace {

std::string NameOf(int64_t degree) {
  return "context parallelism of degree " + std::to_string(degree);
}

// Each of `tensor_columns` ranks scatters its own heads. CheckTensorParallel says that these are
// equal parts.
Status CheckHeads(const ModelSpec& model, int64_t degree, int64_t tensor_columns) {
  const int64_t all_kv_heads = model.kv_heads > 0 ? model.kv_heads : model.heads;
  const int64_t heads = model.heads / tensor_columns;
  const int64_t kv_heads = std::max<int64_t>(all_kv_heads / tensor_columns, 1);
  const std::string what = "resources.context_method ulysses partitions heads over " +
                           std::to_string(degree) + " ranks, and ";
  const std::string share =
      tensor_columns > 1 ? " over tensor_parallel " + std::to_string(tensor_columns) : "";
  if (heads % degree != 0) {
    return InvalidError(what + "model.heads is " + std::to_string(model.heads) + share +
                        "; hint: ring");
  }
  if (kv_heads % degree == 0 || degree % kv_heads == 0) return OkStatus();
  return InvalidError(what + "model.kv_heads is " + std::to_string(all_kv_heads) + share +
                      ", neither a multiple nor a divisor; hint: ring");
}

Status CheckLength(int64_t length, int64_t degree) {
  const int64_t chunks = 2 * degree;
  if (length % chunks == 0) return OkStatus();
  return InvalidError(NameOf(degree) + " cuts each sequence into " + std::to_string(chunks) +
                      " equal chunks, two a rank, and its length is " + std::to_string(length) +
                      "; hint: train.sequence_length " +
                      std::to_string(length < chunks ? chunks : length / chunks * chunks));
}

}  // namespace

Status CheckContextParallel(const ModelSpec& model, int64_t degree, const std::string& method,
                            int64_t tensor_columns) {
  if (degree == 1) return OkStatus();
  return method == "ulysses" ? CheckHeads(model, degree, tensor_columns) : OkStatus();
}

Status CheckContextParallel(const JobSpec& job, int64_t degree, const std::string& method) {
  const ResourceSpec& resources = job.resources;
  if (degree == 1) {
    if (method == "ring") return OkStatus();
    return InvalidError("resources.context_method " + method +
                        " is for context-parallel ranks, and there is one; hint: "
                        "resources.context_parallel");
  }
  const bool imported = !job.model.import_path.empty();
  if (!imported) {
    const int64_t columns = resources.tensor_parallel / resources.tensor_rows;
    WEFT_RETURN_IF_ERROR(CheckContextParallel(job.model, degree, method, columns));
  }
  if (imported && job.train.sequence_length == 0) return OkStatus();
  return CheckLength(SequenceLength(job), degree);
}

}  // namespace weft
