#include "worker/engine/train/batch_loader.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/spec/micro_batch_order.h"
#include "worker/engine/train/first_tokens.h"

namespace weft::engine {

Result<std::unique_ptr<BatchLoader>> BatchLoader::New(Context& context, BatchSource* source,
                                                      const Options& options) {
  std::unique_ptr<BatchLoader> loader(new BatchLoader(context, source, options));
  if (context.stream.device.type == DeviceType::kCuda) {
    WEFT_ASSIGN_OR_RETURN(loader->stage_, CopyStage::New(context));
  }
  return loader;
}

std::vector<BatchLoader::Piece> BatchLoader::PiecesOf(const Request& request,
                                                      int64_t sequences) const {
  std::vector<Piece> pieces;
  const int64_t micro_batches = sequences / (options_.micro_batch * options_.ranks);
  for (int64_t k = 0; k < micro_batches && request.sequences.empty(); ++k) {
    const int64_t first = MicroBatchNumber(options_.rank, k, micro_batches, options_.taking_turns) *
                          options_.micro_batch;
    pieces.push_back({request.data_step, {first, options_.micro_batch}, first});
  }
  int64_t row = request.first_row;
  for (SequenceRange range : request.sequences) {
    while (range.count > 0) {
      // A micro-batch is of successive sequences of one batch of the source.
      const int64_t first = range.first % sequences;
      const int64_t count = std::min({options_.micro_batch, range.count, sequences - first});
      pieces.push_back({request.data_step + range.first / sequences, {first, count}, row});
      range = {range.first + count, range.count - count};
      row += count;
    }
  }
  return pieces;
}

Result<StepBatches> BatchLoader::Load(const Request& request) {
  StepBatches loaded;
  loaded.sequences = options_.schedule.At(request.data_step);
  if (stage_ != nullptr) WEFT_RETURN_IF_ERROR(stage_->StartStep());
  for (const Piece& piece : PiecesOf(request, loaded.sequences)) {
    WEFT_ASSIGN_OR_RETURN(Batch batch,
                          source_->Get(piece.data_step, piece.range.first, piece.range.count));
    if (request.length > 0) batch = FirstTokens(batch, request.length);
    WEFT_ASSIGN_OR_RETURN(TokenBatch tokens,
                          stage_ == nullptr
                              ? TokenBatch::New(*context_, batch, piece.first_row)
                              : TokenBatch::New(*stage_, *context_, batch, piece.first_row));
    if (std::max<int64_t>(std::ssize(batch.part_targets), 1) != options_.parts) {
      return InvalidError("a batch has sequences of " +
                          std::to_string(std::ssize(batch.part_targets)) + " jobs, and " +
                          std::to_string(options_.parts) + " are trained together");
    }
    loaded.part_targets.resize(batch.part_targets.size());
    for (size_t part = 0; part < batch.part_targets.size(); ++part) {
      loaded.part_targets[part] += batch.part_targets[part];
    }
    loaded.targets += batch.target_count;
    loaded.tokens += tokens.count;
    loaded.padding_tokens += batch.padding_tokens;
    if (loaded.micro_batches.empty()) loaded.first_targets = batch.target_count;
    loaded.micro_batches.push_back(std::move(tokens));
    context_->MarkProgress();
  }
  return loaded;
}

Result<TokenBatch> BatchLoader::FirstOf(int64_t rank, const Request& request) {
  const int64_t micro_batches =
      options_.schedule.At(request.data_step) / (options_.micro_batch * options_.ranks);
  const int64_t first =
      MicroBatchNumber(rank, 0, micro_batches, options_.taking_turns) * options_.micro_batch;
  WEFT_ASSIGN_OR_RETURN(Batch batch, source_->Get(request.data_step, first, options_.micro_batch));
  if (request.length > 0) batch = FirstTokens(batch, request.length);
  return TokenBatch::New(*context_, batch, first);
}

Result<StepBatches> BatchLoader::Take(const Request& request) {
  std::optional<Prefetched> prefetched = std::exchange(prefetched_, std::nullopt);
  // After a rollback the data goes on elsewhere.
  const bool known = prefetched && prefetched->batches.ok() && prefetched->request == request;
  Result<StepBatches> batches = known ? std::move(prefetched->batches) : Load(request);
  WEFT_RETURN_IF_ERROR(batches.status());
  if (stage_ != nullptr) WEFT_RETURN_IF_ERROR(stage_->Use(*context_));
  return batches;
}

void BatchLoader::Prefetch(const Request& request) {
  if (stage_ != nullptr) prefetched_ = {request, Load(request)};
}

}  // namespace weft::engine
