#include "worker/engine/data/joint_batches.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "kernels/cross_entropy/cross_entropy.h"

namespace weft::engine {
namespace {

/// Fills the row that is being appended up to the length of the batch.
void FillRow(int64_t filled, Batch& batch) {
  if (filled == batch.length) return;
  const size_t end = batch.tokens.size() + static_cast<size_t>(batch.length - filled);
  // A run of its own, so that no real token attends to it.
  batch.sequence_starts.push_back(static_cast<int32_t>(batch.tokens.size()));
  batch.tokens.resize(end, 0);
  batch.targets.resize(end, kernels::kIgnoreTarget);
  for (int32_t at = 0; batch.positions.size() < end; ++at) batch.positions.push_back(at);
  batch.padding_tokens += batch.length - filled;
}

void AppendRow(const Batch& part, int64_t row, Batch& batch) {
  const auto begin = row * part.length, end = begin + part.length;
  const auto to = static_cast<int32_t>(batch.tokens.size());
  const auto copy = [&](const std::vector<int32_t>& from, std::vector<int32_t>& all) {
    all.insert(all.end(), from.begin() + begin, from.begin() + end);
  };
  const auto& starts = part.sequence_starts;
  for (auto run = std::lower_bound(starts.begin(), starts.end(), begin);
       run != starts.end() && *run < end; ++run) {
    batch.sequence_starts.push_back(to + *run - static_cast<int32_t>(begin));
  }
  copy(part.tokens, batch.tokens);
  copy(part.targets, batch.targets);
  copy(part.positions, batch.positions);
  const bool full = part.lengths.empty();
  batch.lengths.push_back(full ? static_cast<int32_t>(part.length)
                               : part.lengths[static_cast<size_t>(row)]);
  FillRow(part.length, batch);
}

}  // namespace

int64_t JointBatches::Sequences() const {
  int64_t most = 0;
  for (const auto& source : sources_) {
    if (source != nullptr) most = std::max(most, source->Sequences());
  }
  return most * std::ssize(sources_);
}

Result<Batch> JointBatches::Get(int64_t step, int64_t first_sequence, int64_t count) {
  const auto jobs = std::ssize(sources_);
  if (first_sequence % jobs != 0 || count % jobs != 0) {
    return InvalidError("sequences " + std::to_string(first_sequence) + " to " +
                        std::to_string(first_sequence + count) + " are not as many of each of " +
                        std::to_string(jobs) + " jobs that are trained together");
  }
  const int64_t first = first_sequence / jobs, each = count / jobs;
  Batch batch;
  std::vector<Batch> parts(sources_.size());
  for (size_t k = 0; k < sources_.size(); ++k) {
    int64_t found = each;
    if (at_end_ == AtEnd::kBlankRows) {
      const int64_t size = sources_[k] == nullptr ? 0 : sources_[k]->Sequences();
      found = std::clamp<int64_t>(size - first, 0, each);
    }
    if (found > 0) {
      WEFT_ASSIGN_OR_RETURN(parts[k], sources_[k]->Get(step, first, found));
    }
    batch.length = std::max(batch.length, parts[k].length);
    batch.stride = std::max(batch.stride, parts[k].stride);
  }
  batch.sequences = count;
  for (const Batch& part : parts) {
    for (int64_t row = 0; row < part.sequences; ++row) AppendRow(part, row, batch);
    for (int64_t row = part.sequences; row < each; ++row) {
      batch.lengths.push_back(0);
      FillRow(0, batch);
    }
    batch.part_targets.push_back(part.target_count);
    batch.target_count += part.target_count;
    batch.padding_tokens += part.padding_tokens;
  }
  batch.sequence_starts.push_back(static_cast<int32_t>(batch.tokens.size()));
  return batch;
}

}  // namespace weft::engine
