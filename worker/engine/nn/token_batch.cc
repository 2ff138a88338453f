#include "worker/engine/nn/token_batch.h"

#include <cstring>
#include <string>
#include <vector>

namespace weft::engine {
namespace {

Result<Tensor> Upload(Context& context, const std::vector<int32_t>& values) {
  WEFT_ASSIGN_OR_RETURN(Tensor tensor, Tensor::New(context, Component::kWorkspace, DType::kI32,
                                                   {static_cast<int64_t>(values.size())}));
  if (!values.empty()) std::memcpy(tensor.As<int32_t>(), values.data(), tensor.Bytes());
  return tensor;
}

}  // namespace

Result<TokenBatch> TokenBatch::New(Context& context, const Batch& batch, int64_t first_sequence) {
  const int64_t count = batch.sequences * batch.length;
  const auto size = static_cast<size_t>(count);
  if (batch.tokens.size() != size || batch.targets.size() != size ||
      batch.positions.size() != size || batch.sequence_starts.empty() ||
      batch.sequence_starts.back() != count) {
    return InvalidError("batch of " + std::to_string(batch.sequences) + " sequences x " +
                        std::to_string(batch.length) + " tokens has " +
                        std::to_string(batch.tokens.size()) + " tokens, " +
                        std::to_string(batch.targets.size()) + " targets, " +
                        std::to_string(batch.positions.size()) + " positions, or sequence_starts " +
                        "that do not end at the last token");
  }
  TokenBatch out;
  WEFT_ASSIGN_OR_RETURN(out.tokens, Upload(context, batch.tokens));
  WEFT_ASSIGN_OR_RETURN(out.targets, Upload(context, batch.targets));
  WEFT_ASSIGN_OR_RETURN(out.positions, Upload(context, batch.positions));
  WEFT_ASSIGN_OR_RETURN(out.sequence_starts, Upload(context, batch.sequence_starts));
  out.count = count;
  out.first_token = first_sequence * batch.length;
  return out;
}

}  // namespace weft::engine
