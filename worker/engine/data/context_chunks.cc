#include "worker/engine/data/context_chunks.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "kernels/cross_entropy/cross_entropy.h"

namespace weft::engine {
namespace {

Status Check(const Batch& whole, int64_t ranks) {
  const auto refuse = [&](const std::string& why) {
    return InvalidError(std::to_string(ranks) + " ranks cannot share a batch of " + why);
  };
  if (whole.length % (2 * ranks) != 0) {
    return refuse("sequences of " + std::to_string(whole.length) +
                  " tokens, not a multiple of two chunks a rank; hint: train.sequence_length");
  }
  if (!whole.pixels.empty() || !whole.labels.empty() || !whole.target_rows.empty() ||
      !whole.token_types.empty()) {
    return refuse("another kind than that of causal language models");
  }
  bool rows = static_cast<int64_t>(whole.sequence_starts.size()) == whole.sequences + 1;
  for (int64_t s = 0; rows && s <= whole.sequences; ++s) {
    rows = whole.sequence_starts[static_cast<size_t>(s)] == s * whole.length;
  }
  if (rows) return OkStatus();
  return refuse(
      "padded sequences or documents that are masked from each other; hint: no "
      "data.mask_documents");
}

int64_t CountTargets(std::span<const int32_t> targets) {
  return std::ssize(targets) - std::count(targets.begin(), targets.end(), kernels::kIgnoreTarget);
}

}  // namespace

Result<Batch> ChunksOfRank(const Batch& whole, int64_t rank, int64_t ranks) {
  WEFT_RETURN_IF_ERROR(Check(whole, ranks));
  const int64_t chunk = whole.length / (2 * ranks);
  Batch own;
  own.sequences = whole.sequences;
  own.length = 2 * chunk;
  own.stride = whole.stride > 0 ? whole.stride : whole.length;
  for (int64_t s = 0; s < whole.sequences; ++s) {
    own.sequence_starts.push_back(static_cast<int32_t>(s * own.length));
    for (const int64_t number : {rank, 2 * ranks - 1 - rank}) {
      const int64_t first = s * whole.length + number * chunk;
      const auto append = [&](const std::vector<int32_t>& from, std::vector<int32_t>& to) {
        to.insert(to.end(), from.begin() + first, from.begin() + first + chunk);
      };
      append(whole.tokens, own.tokens);
      append(whole.targets, own.targets);
      append(whole.positions, own.positions);
    }
  }
  own.sequence_starts.push_back(static_cast<int32_t>(own.sequences * own.length));
  // Rows are full, or blank (JointBatches).
  for (const int32_t length : whole.lengths) {
    own.lengths.push_back(length == 0 ? 0 : static_cast<int32_t>(own.length));
    if (length == 0) own.padding_tokens += own.length;
  }
  own.target_count = CountTargets(own.targets);
  const auto parts = std::ssize(whole.part_targets);
  for (int64_t part = 0; part < parts; ++part) {
    const size_t size = own.targets.size() / static_cast<size_t>(parts);
    own.part_targets.push_back(
        CountTargets(std::span(own.targets).subspan(static_cast<size_t>(part) * size, size)));
  }
  return own;
}

Result<Batch> ContextChunks::Get(int64_t step, int64_t first_sequence, int64_t count) {
  WEFT_ASSIGN_OR_RETURN(const Batch whole, source_->Get(step, first_sequence, count));
  return ChunksOfRank(whole, rank_, ranks_);
}

}  // namespace weft::engine
