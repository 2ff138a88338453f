#include "worker/engine/train/step_launcher.h"

#include <algorithm>
#include <array>
#include <utility>

namespace weft::engine {
namespace {

/// Where the batches are in memory, and their sizes.
StepGraphs::Key KeyOf(const std::vector<TokenBatch>& batches, bool measures_groups) {
  StepGraphs::Key key = {measures_groups ? 1 : 0};
  for (const TokenBatch& b : batches) {
    key.insert(key.end(), {b.sequences, b.length, b.first_sequence, b.first_token});
    for (const Tensor* tensor :
         {&b.tokens, &b.targets, &b.positions, &b.sequence_starts, &b.token_types, &b.lengths,
          &b.labels, &b.target_rows, &b.row_targets, &b.pixels, &b.first_rows, &b.other_rows}) {
      key.push_back(*tensor ? reinterpret_cast<int64_t>(tensor->view().data) : 0);
      key.push_back(*tensor ? tensor->shape().Elements() : 0);
    }
  }
  return key;
}

}  // namespace

void StepLauncher::UseGraphs() {
  if (reducer_ == nullptr) {
    graphs_ = std::make_unique<StepGraphs>();
    return;
  }
  const auto agree = [reducer = reducer_](bool own) -> Result<bool> {
    std::array<double, 1> votes = {own ? 1.0 : 0.0};
    WEFT_RETURN_IF_ERROR(reducer->SumScalars(votes));
    return votes[0] == static_cast<double>(reducer->world_size());
  };
  graphs_ = std::make_unique<StepGraphs>(reducer_->recorders(), agree);
}

StepGraphs::Vote StepLauncher::VoteFor(const Step& step) {
  if (graphs_ == nullptr || context_->profiler != nullptr || step.alone) return {};
  return graphs_->Next(*context_, KeyOf(step.batches, step.measures_groups), step.parts);
}

Status StepLauncher::Agree(const Step& step, std::span<double> counts, PhaseSeconds& seconds) {
  using enum StepGraphs::Mode;
  const StepGraphs::Vote own = VoteFor(step);
  const auto recording = static_cast<double>(own.recording);
  std::vector<double> sums = {own.mode >= kRecord ? 1.0 : 0.0, own.mode >= kLaunch ? 1.0 : 0.0,
                              recording, recording * recording};
  sums.insert(sums.end(), counts.begin(), counts.end());
  WEFT_RETURN_IF_ERROR(ranks_->SumScalars(sums, seconds));
  std::copy_n(sums.end() - static_cast<std::ptrdiff_t>(counts.size()), counts.size(),
              counts.begin());
  const double ranks = reducer_ != nullptr ? static_cast<double>(reducer_->world_size()) : 1;
  // The squares of numbers add up to this where all are equal, and to more where not.
  const bool together = sums[3] * ranks == sums[2] * sums[2];
  mode_ = sums[1] == ranks && together ? kLaunch : sums[0] == ranks ? kRecord : kEnqueue;
  return OkStatus();
}

Status StepLauncher::Run(size_t part, const std::function<Status()>& enqueue) {
  return enqueues() ? enqueue() : graphs_->Run(*context_, *clock_, mode_, part, enqueue);
}

void StepLauncher::Forget() {
  if (graphs_ != nullptr) graphs_->Clear();
}

}  // namespace weft::engine
