#include "worker/engine/data/loader.h"

#include <algorithm>
#include <string>

#include "kernels/cross_entropy/cross_entropy.h"
#include "worker/engine/data/permutation.h"

namespace weft::engine {
namespace {

constexpr uint32_t kOrderSite = SiteHash("data.order");

LoaderOptions CommonOptions(const JobSpec& job, const DatasetInfo& info) {
  LoaderOptions options;
  options.length = SequenceLength(job);
  options.global_batch = job.train.global_batch;
  options.seed = static_cast<uint64_t>(job.train.seed);
  options.best_fit = job.data.batching == "best_fit";
  options.mask_documents = job.data.mask_documents;
  options.padding_token = static_cast<int32_t>(info.end_of_text);
  return options;
}

}  // namespace

LoaderOptions TrainLoaderOptions(const JobSpec& job, const DatasetInfo& info) {
  return CommonOptions(job, info);
}

LoaderOptions ValidationLoaderOptions(const JobSpec& job, const DatasetInfo& info) {
  LoaderOptions options = CommonOptions(job, info);
  options.shuffle = false;
  return options;
}

TokenLoader::TokenLoader(TokenSpan span, const LoaderOptions& options)
    : span_(std::move(span)), options_(options) {
  if (options_.best_fit || options_.mask_documents) document_starts_ = span_.DocumentStarts();
  if (options_.best_fit) {
    if (span_.count > 0) packed_ = PackBestFit(document_starts_, options_.length);
    sequences_ = static_cast<int64_t>(packed_.size());
  } else if (span_.count > 0) {
    // The last token is only a target.
    sequences_ = static_cast<int64_t>(span_.count - 1) / options_.length;
  }
}

Result<std::unique_ptr<TokenLoader>> TokenLoader::Create(TokenSpan span,
                                                         const LoaderOptions& options) {
  WEFT_CHECK(options.length > 0 && options.global_batch > 0, "sizes must be positive");
  std::unique_ptr<TokenLoader> loader(new TokenLoader(std::move(span), options));
  if (loader->sequences_ == 0) {
    return InvalidError("the data have " + std::to_string(loader->span_.count) +
                        " tokens, too few for one sequence of " + std::to_string(options.length) +
                        ". hint: give more text, a larger validation_fraction or a shorter "
                        "sequence_length");
  }
  return loader;
}

uint64_t TokenLoader::SequenceAt(int64_t step, int64_t sequence) const {
  if (!options_.shuffle) return static_cast<uint64_t>(sequence);
  const auto size = static_cast<uint64_t>(sequences_);
  const uint64_t number =
      static_cast<uint64_t>(step) * static_cast<uint64_t>(options_.global_batch) +
      static_cast<uint64_t>(sequence);
  const auto epoch = static_cast<uint32_t>(number / size);
  return Permute(number % size, size, {options_.seed, epoch, kOrderSite});
}

Result<Batch> TokenLoader::Get(int64_t step, int64_t first_sequence, int64_t count) {
  const int64_t bound = options_.shuffle ? options_.global_batch : sequences_;
  WEFT_CHECK(step >= 0 && first_sequence >= 0 && count >= 0 && first_sequence <= bound - count,
             "sequences outside the batch");
  Batch batch;
  batch.sequences = count;
  batch.length = options_.length;
  const auto size = static_cast<size_t>(count * options_.length);
  batch.tokens.reserve(size);
  batch.targets.reserve(size);
  batch.positions.reserve(size);
  for (int64_t s = 0; s < count; ++s) {
    const uint64_t sequence = SequenceAt(step, first_sequence + s);
    if (options_.best_fit) {
      AppendPacked(sequence, batch);
    } else {
      AppendStream(sequence, batch);
    }
  }
  batch.sequence_starts.push_back(static_cast<int32_t>(size));
  batch.target_count =
      static_cast<int64_t>(size) -
      std::count(batch.targets.begin(), batch.targets.end(), kernels::kIgnoreTarget);
  return batch;
}

void TokenLoader::AppendTokens(uint64_t first, uint64_t count, Batch& batch) const {
  const size_t at = batch.tokens.size();
  const bool has_next = first + count < span_.count;
  // One more token than asked for: the target of the last.
  batch.tokens.resize(at + count + (has_next ? 1 : 0));
  span_.shard->Read(span_.first + first, std::span(batch.tokens).subspan(at));
  batch.targets.insert(batch.targets.end(), batch.tokens.begin() + static_cast<ptrdiff_t>(at) + 1,
                       batch.tokens.end());
  if (!has_next) batch.targets.push_back(kernels::kIgnoreTarget);
  batch.tokens.resize(at + count);
}

void TokenLoader::AppendStream(uint64_t sequence, Batch& batch) const {
  const auto length = static_cast<uint64_t>(options_.length);
  const size_t base = batch.tokens.size();
  const uint64_t first = sequence * length;
  AppendTokens(first, length, batch);
  batch.sequence_starts.push_back(static_cast<int32_t>(base));
  if (!options_.mask_documents) {
    for (uint64_t i = 0; i < length; ++i) batch.positions.push_back(static_cast<int32_t>(i));
    return;
  }
  auto next = std::upper_bound(document_starts_.begin(), document_starts_.end(), first);
  int32_t position = 0;
  for (uint64_t i = 0; i < length; ++i) {
    if (first + i == *next) {
      ++next;
      batch.sequence_starts.push_back(static_cast<int32_t>(base + i));
      position = 0;
    }
    batch.positions.push_back(position++);
    if (first + i + 1 == *next) batch.targets[base + i] = kernels::kIgnoreTarget;
  }
}

void TokenLoader::AppendPacked(uint64_t sequence, Batch& batch) const {
  const auto length = static_cast<size_t>(options_.length);
  const size_t base = batch.tokens.size();
  batch.sequence_starts.push_back(static_cast<int32_t>(base));
  auto begin_run = [&] {
    const auto at = static_cast<int32_t>(batch.tokens.size());
    if (options_.mask_documents && batch.sequence_starts.back() != at) {
      batch.sequence_starts.push_back(at);
    }
  };
  auto count_positions = [&](size_t from, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      batch.positions.push_back(static_cast<int32_t>(from + i));
    }
  };
  for (const Segment& segment : packed_[sequence]) {
    begin_run();
    const size_t at = batch.tokens.size();
    // A document's last token is followed by its neighbour here, if any, not by the next in the
    // data.
    const bool ends_document = std::binary_search(document_starts_.begin(), document_starts_.end(),
                                                  segment.first + segment.count);
    if (!options_.mask_documents && at > base && batch.targets.back() == kernels::kIgnoreTarget) {
      batch.targets.back() = (*span_.shard)[span_.first + segment.first];
    }
    AppendTokens(segment.first, segment.count, batch);
    if (ends_document) batch.targets.back() = kernels::kIgnoreTarget;
    count_positions(options_.mask_documents ? 0 : at - base, segment.count);
  }
  const size_t filled = batch.tokens.size() - base;
  if (filled == length) return;
  begin_run();
  batch.tokens.resize(base + length, options_.padding_token);
  batch.targets.resize(base + length, kernels::kIgnoreTarget);
  count_positions(options_.mask_documents ? 0 : filled, length - filled);
}

}  // namespace weft::engine
