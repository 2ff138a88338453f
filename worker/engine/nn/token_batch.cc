#include "worker/engine/nn/token_batch.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace weft::engine {
namespace {

Result<Tensor> Upload(Context& context, const std::vector<int32_t>& values) {
  if (values.empty()) return Tensor();
  WEFT_ASSIGN_OR_RETURN(Tensor tensor, Tensor::New(context, Component::kWorkspace, DType::kI32,
                                                   {static_cast<int64_t>(values.size())}));
  std::memcpy(tensor.As<int32_t>(), values.data(), tensor.Bytes());
  return tensor;
}

Result<Tensor> UploadPixels(Context& context, const Batch& batch) {
  if (batch.pixels.empty()) return Tensor();
  const auto each = static_cast<int64_t>(batch.pixels.size()) / batch.sequences;
  WEFT_ASSIGN_OR_RETURN(Tensor tensor, Tensor::New(context, Component::kWorkspace, DType::kF32,
                                                   {batch.sequences, each}));
  std::memcpy(tensor.As<float>(), batch.pixels.data(), tensor.Bytes());
  return tensor;
}

/// The first thing that does not fit, or "".
std::string Misfit(const Batch& batch) {
  const auto rows = static_cast<size_t>(batch.sequences);
  const auto count = static_cast<size_t>(batch.sequences * batch.length);
  auto is = [](size_t size, size_t wanted) { return size == wanted; };
  auto is_or_none = [](size_t size, size_t wanted) { return size == wanted || size == 0; };
  const bool pictures = !batch.pixels.empty();
  const bool classified = !batch.labels.empty();
  if (!is(batch.tokens.size(), pictures ? 0 : count)) return "tokens";
  if (!is(batch.targets.size(), classified ? 0 : count)) return "targets";
  if (!is(batch.positions.size(), count)) return "positions";
  if (!is_or_none(batch.token_types.size(), count)) return "token_types";
  if (!is_or_none(batch.labels.size(), rows)) return "labels";
  if (!is_or_none(batch.lengths.size(), rows)) return "lengths";
  if (pictures && (rows == 0 || batch.pixels.size() % rows != 0)) return "pixels";
  if (batch.sequence_starts.empty() ||
      batch.sequence_starts.back() != batch.sequences * batch.length) {
    return "sequence_starts";
  }
  if (classified && !batch.target_rows.empty()) return "target_rows";
  for (size_t i = 0; i < batch.target_rows.size(); ++i) {
    const int64_t row = batch.target_rows[i];
    if (row >= batch.sequences * batch.length ||
        (i == 0 ? row < 0 : row <= batch.target_rows[i - 1])) {
      return "target_rows";
    }
  }
  return "";
}

}  // namespace

Result<TokenBatch> TokenBatch::New(Context& context, const Batch& batch, int64_t first_sequence) {
  if (batch.sequences < 1 || batch.length < 1) {
    return InvalidError("a batch of " + std::to_string(batch.sequences) + " sequences x " +
                        std::to_string(batch.length) + " tokens is empty");
  }
  if (std::string misfit = Misfit(batch); !misfit.empty()) {
    return InvalidError("the " + misfit + " of a batch of " + std::to_string(batch.sequences) +
                        " sequences x " + std::to_string(batch.length) +
                        " tokens do not fit this size");
  }
  TokenBatch out;
  WEFT_ASSIGN_OR_RETURN(out.tokens, Upload(context, batch.tokens));
  WEFT_ASSIGN_OR_RETURN(out.targets, Upload(context, batch.targets));
  WEFT_ASSIGN_OR_RETURN(out.positions, Upload(context, batch.positions));
  WEFT_ASSIGN_OR_RETURN(out.sequence_starts, Upload(context, batch.sequence_starts));
  WEFT_ASSIGN_OR_RETURN(out.token_types, Upload(context, batch.token_types));
  WEFT_ASSIGN_OR_RETURN(out.labels, Upload(context, batch.labels));
  WEFT_ASSIGN_OR_RETURN(out.target_rows, Upload(context, batch.target_rows));
  std::vector<int32_t> row_targets;
  for (const int32_t row : batch.target_rows) row_targets.push_back(batch.targets[row]);
  WEFT_ASSIGN_OR_RETURN(out.row_targets, Upload(context, row_targets));
  WEFT_ASSIGN_OR_RETURN(out.pixels, UploadPixels(context, batch));
  out.lengths = batch.lengths;
  if (out.lengths.empty()) {
    out.lengths.assign(static_cast<size_t>(batch.sequences), static_cast<int32_t>(batch.length));
  }
  out.sequences = batch.sequences;
  out.length = batch.length;
  out.count = batch.sequences * batch.length;
  out.first_sequence = first_sequence;
  out.first_token = first_sequence * (batch.stride > 0 ? batch.stride : batch.length);
  return out;
}

}  // namespace weft::engine
