#include "worker/engine/nn/token_batch.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "common/number.h"
#include "kernels/gather_rows/gather_rows.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

// Vectors of a batch in one piece of memory, hence one copy.
class BatchPacker {
 public:
  template <class T>
  void Add(Tensor* to, const std::vector<T>& values) {
    Add(to, values, Shape{static_cast<int64_t>(values.size())});
  }
  template <class T>
  void Add(Tensor* to, const std::vector<T>& values, const Shape& shape) {
    if (values.empty()) return;
    constexpr size_t kAlignment = 64;
    parts_.push_back({to, values.data(), kDTypeOf<T>, shape, bytes_});
    bytes_ += RoundUp(values.size() * sizeof(T), kAlignment);
  }

  Status Send(BatchStage& stage, Context& context) const {
    WEFT_ASSIGN_OR_RETURN(const BatchStage::Space space, stage.Take(context, bytes_));
    for (const Part& part : parts_) {
      *part.to = space.tensor.Part(part.offset, part.dtype, part.shape);
      std::memcpy(static_cast<std::byte*>(space.host) + part.offset, part.values, part.to->Bytes());
    }
    return stage.Send(context, space, bytes_);
  }

 private:
  struct Part {
    Tensor* to;
    const void* values;
    DType dtype;
    Shape shape;
    size_t offset;
  };
  std::vector<Part> parts_;
  size_t bytes_ = 0;
};

// Memory of a batch of its own.
class PlainStage : public BatchStage {
 public:
  Result<Space> Take(Context& context, size_t bytes) override {
    Space space;
    WEFT_ASSIGN_OR_RETURN(space.tensor, Tensor::New(context, Component::kWorkspace, DType::kU8,
                                                    Shape{static_cast<int64_t>(bytes)}));
    if (context.stream.device.type == DeviceType::kCpu) {
      space.host = space.tensor.As<uint8_t>();
    } else {
      host_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      space.host = host_.get();
    }
    return space;
  }
  Status Send(Context& context, const Space& space, size_t) override {
    return host_ == nullptr ? OkStatus() : Upload(context.stream, space.host, space.tensor);
  }

 private:
  std::unique_ptr<std::byte[]> host_;
};

/// The first thing that does not fit, or "".
std::string Misfit(const Batch& batch) {
  const auto rows = static_cast<size_t>(batch.sequences);
  const auto count = static_cast<size_t>(batch.sequences * batch.length);
  auto is = [](size_t size, size_t wanted) { return size == wanted; };
  auto is_or_none = [](size_t size, size_t wanted) { return size == wanted || size == 0; };
  const bool images = !batch.pixels.empty();
  const bool classified = !batch.labels.empty();
  if (!is(batch.tokens.size(), images ? 0 : count)) return "tokens";
  if (!is(batch.targets.size(), classified ? 0 : count)) return "targets";
  if (!is(batch.positions.size(), count)) return "positions";
  if (!is_or_none(batch.token_types.size(), count)) return "token_types";
  if (!is_or_none(batch.labels.size(), rows)) return "labels";
  if (!is_or_none(batch.sequence_indices.size(), rows)) return "sequence_indices";
  if (!is_or_none(batch.lengths.size(), rows) ||
      !std::all_of(batch.lengths.begin(), batch.lengths.end(),
                   [&](int32_t length) { return length >= 0 && length <= batch.length; })) {
    return "lengths";
  }
  if (images && (rows == 0 || batch.pixels.size() % rows != 0)) return "pixels";
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

int64_t RealTokens(const Batch& batch) {
  if (batch.lengths.empty()) return batch.sequences * batch.length;
  return std::accumulate(batch.lengths.begin(), batch.lengths.end(), int64_t{0});
}

}  // namespace

Result<TokenBatch> TokenBatch::New(Context& context, const Batch& batch, int64_t first_sequence) {
  PlainStage stage;
  return New(stage, context, batch, first_sequence);
}

Result<TokenBatch> TokenBatch::New(BatchStage& stage, Context& context, const Batch& batch,
                                   int64_t first_sequence) {
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
  BatchPacker packer;
  packer.Add(&out.tokens, batch.tokens);
  packer.Add(&out.targets, batch.targets);
  packer.Add(&out.positions, batch.positions);
  packer.Add(&out.sequence_starts, batch.sequence_starts);
  packer.Add(&out.token_types, batch.token_types);
  out.count = batch.sequences * batch.length;
  out.real_tokens = RealTokens(batch);
  if (out.real_tokens < out.count) {
    packer.Add(&out.lengths, batch.lengths);
    out.lengths_on_host = std::make_shared<const std::vector<int32_t>>(batch.lengths);
  }
  packer.Add(&out.labels, batch.labels);
  packer.Add(&out.target_rows, batch.target_rows);
  std::vector<int32_t> row_targets;
  for (const int32_t row : batch.target_rows) row_targets.push_back(batch.targets[row]);
  packer.Add(&out.row_targets, row_targets);
  if (!batch.pixels.empty()) {
    // On their own: they are large, and the backward pass needs only the rest.
    BatchPacker images;
    images.Add(&out.pixels, batch.pixels,
               {batch.sequences, static_cast<int64_t>(batch.pixels.size()) / batch.sequences});
    WEFT_RETURN_IF_ERROR(images.Send(stage, context));
  }
  std::vector<int32_t> first_rows, other_rows;
  for (int64_t row = 0; !batch.labels.empty() && row < batch.sequences * batch.length; ++row) {
    (row % batch.length == 0 ? first_rows : other_rows).push_back(static_cast<int32_t>(row));
  }
  packer.Add(&out.first_rows, first_rows);
  if (!batch.pixels.empty()) packer.Add(&out.other_rows, other_rows);
  WEFT_RETURN_IF_ERROR(packer.Send(stage, context));
  out.starts_on_host = std::make_shared<const std::vector<int32_t>>(batch.sequence_starts);
  out.positions_on_host = std::make_shared<const std::vector<int32_t>>(batch.positions);
  if (!batch.token_types.empty()) {
    out.types_on_host = std::make_shared<const std::vector<int32_t>>(batch.token_types);
  }
  if (!batch.target_rows.empty()) {
    out.target_rows_on_host = std::make_shared<const std::vector<int32_t>>(batch.target_rows);
  }
  out.sequence_indices = batch.sequence_indices;
  out.sequences = batch.sequences;
  out.length = batch.length;
  out.target_count = batch.target_count;
  out.parts = std::max<int64_t>(std::ssize(batch.part_targets), 1);
  out.first_sequence = first_sequence;
  out.first_token = first_sequence * (batch.stride > 0 ? batch.stride : batch.length);
  return out;
}

bool TokenBatch::IsPadding(size_t run) const {
  if (lengths_on_host == nullptr) return false;
  const int64_t first = (*starts_on_host)[run], place = first % length;
  return place > 0 && place >= (*lengths_on_host)[static_cast<size_t>(first / length)];
}

int64_t TokenBatch::RunsOfTokens() const {
  int64_t runs = 0;
  for (size_t run = 0; run + 1 < starts_on_host->size(); ++run) runs += IsPadding(run) ? 0 : 1;
  return runs;
}

Result<TokenBatch::Extended> TokenBatch::Extend(Context& context, const AddedRows& rows) const {
  std::vector<int32_t> starts, positions_of_rows, positions_of_tokens, token_rows, added_rows;
  std::vector<int32_t> types, first_of_sequences, rows_of_targets, lengths_of_rows;
  const auto row = [&] { return static_cast<int32_t>(positions_of_rows.size()); };
  Extended extended;
  for (size_t run = 0; run + 1 < starts_on_host->size(); ++run) {
    starts.push_back(row());
    const bool begins_row = (*starts_on_host)[run] % length == 0;
    if (begins_row && first_rows) first_of_sequences.push_back(row());
    if (!IsPadding(run)) {
      ++extended.runs;
      for (int64_t i = 0; i < rows.count; ++i) {
        added_rows.push_back(row());
        positions_of_rows.push_back(rows.ordered ? static_cast<int32_t>(i) : 0);
      }
    }
    if (types_on_host != nullptr) types.resize(positions_of_rows.size());
    for (int32_t token = (*starts_on_host)[run]; token < (*starts_on_host)[run + 1]; ++token) {
      const auto at = static_cast<size_t>(token);
      token_rows.push_back(row());
      positions_of_tokens.push_back((*positions_on_host)[at] +
                                    static_cast<int32_t>(rows.first_position));
      positions_of_rows.push_back(positions_of_tokens.back());
      if (types_on_host != nullptr) types.push_back((*types_on_host)[at]);
    }
  }
  starts.push_back(row());
  TokenBatch& out = extended.batch;
  BatchPacker packer;
  if (target_rows_on_host != nullptr) {
    for (const int32_t token : *target_rows_on_host) {
      rows_of_targets.push_back(token_rows[static_cast<size_t>(token)]);
    }
  }
  if (lengths_on_host != nullptr && extended.runs == sequences) {
    for (const int32_t own : *lengths_on_host) {
      lengths_of_rows.push_back(own + static_cast<int32_t>(rows.count));
    }
    out.lengths_on_host = std::make_shared<const std::vector<int32_t>>(lengths_of_rows);
  }
  packer.Add(&out.lengths, lengths_of_rows);
  packer.Add(&out.target_rows, rows_of_targets);
  packer.Add(&out.token_types, types);
  packer.Add(&out.first_rows, first_of_sequences);
  packer.Add(&out.sequence_starts, starts);
  packer.Add(&out.positions, positions_of_rows);
  packer.Add(&extended.token_rows, token_rows);
  packer.Add(&extended.added_rows, added_rows);
  packer.Add(&extended.token_positions, positions_of_tokens);
  PlainStage stage;
  WEFT_RETURN_IF_ERROR(packer.Send(stage, context));
  out.count = row();
  out.starts_on_host = std::make_shared<const std::vector<int32_t>>(std::move(starts));
  out.positions_on_host =
      std::make_shared<const std::vector<int32_t>>(std::move(positions_of_rows));
  out.sequences = sequences;
  out.length = length + rows.count;
  out.first_sequence = first_sequence;
  out.first_token = first_token + first_sequence * rows.count;
  out.real_tokens = real_tokens + std::ssize(added_rows);
  return extended;
}

Result<TokenBatch::Picked> TokenBatch::Pick(Context& context,
                                            const std::vector<int64_t>& sequences_picked) const {
  std::vector<int32_t> starts, picked_rows;
  for (const int64_t sequence : sequences_picked) {
    const int64_t first = sequence * length, begin = std::ssize(picked_rows);
    starts.push_back(static_cast<int32_t>(begin));
    // Runs within the row, after the one that begins it.
    for (auto start = std::upper_bound(starts_on_host->begin(), starts_on_host->end(), first);
         start != starts_on_host->end() && *start < first + length; ++start) {
      starts.push_back(static_cast<int32_t>(*start - first + begin));
    }
    for (int64_t row = first; row < first + length; ++row) {
      picked_rows.push_back(static_cast<int32_t>(row));
    }
  }
  starts.push_back(static_cast<int32_t>(picked_rows.size()));
  Picked picked;
  TokenBatch& out = picked.batch;
  BatchPacker packer;
  packer.Add(&out.sequence_starts, starts);
  packer.Add(&picked.rows, picked_rows);
  PlainStage stage;
  WEFT_RETURN_IF_ERROR(packer.Send(stage, context));
  out.starts_on_host = std::make_shared<const std::vector<int32_t>>(std::move(starts));
  out.sequences = std::ssize(sequences_picked);
  out.length = length;
  out.count = std::ssize(picked_rows);
  // Rows are copied bit for bit, whatever their type.
  WEFT_ASSIGN_OR_RETURN(out.positions,
                        Tensor::New(context, Component::kWorkspace, DType::kI32, {out.count}));
  WEFT_RETURN_IF_ERROR(
      kernels::GatherRows(context.stream, {positions.Part(0, DType::kF32, {count, 1}), picked.rows,
                                           out.positions.Part(0, DType::kF32, {out.count, 1})}));
  return picked;
}

}  // namespace weft::engine
