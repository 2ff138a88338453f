#include "common/pipeline/schedule.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/pipeline/simulate.h"

namespace weft {
namespace {

PipelineStep Forward(int64_t micro_batch, int64_t chunk = 0) {
  return {PipelineOp::kForward, static_cast<int32_t>(chunk), static_cast<int32_t>(micro_batch)};
}

PipelineStep Backward(int64_t micro_batch, int64_t chunk = 0) {
  return {PipelineOp::kBackward, static_cast<int32_t>(chunk), static_cast<int32_t>(micro_batch)};
}

PipelineSchedule Empty(int64_t ranks, int64_t chunks, int64_t micro_batches) {
  PipelineSchedule schedule{.ranks = ranks, .chunks = chunks, .micro_batches = micro_batches};
  schedule.steps.resize(static_cast<size_t>(ranks));
  return schedule;
}

}  // namespace

std::string_view PipelineOpName(PipelineOp op) {
  switch (op) {
    case PipelineOp::kForward:
      return "F";
    case PipelineOp::kBackward:
      return "B";
    case PipelineOp::kBackwardInput:
      return "I";
    case PipelineOp::kBackwardWeight:
      return "W";
  }
  return "?";
}

PipelineSchedule GPipeSchedule(int64_t ranks, int64_t micro_batches) {
  PipelineSchedule schedule = Empty(ranks, 1, micro_batches);
  for (std::vector<PipelineStep>& steps : schedule.steps) {
    for (int64_t i = 0; i < micro_batches; ++i) steps.push_back(Forward(i));
    for (int64_t i = 0; i < micro_batches; ++i) steps.push_back(Backward(i));
  }
  return schedule;
}

PipelineSchedule OneForwardOneBackwardSchedule(int64_t ranks, int64_t micro_batches) {
  PipelineSchedule schedule = Empty(ranks, 1, micro_batches);
  for (int64_t r = 0; r < ranks; ++r) {
    std::vector<PipelineStep>& steps = schedule.steps[static_cast<size_t>(r)];
    const int64_t ahead = std::min(micro_batches, ranks - 1 - r);
    for (int64_t i = 0; i < ahead; ++i) steps.push_back(Forward(i));
    for (int64_t i = 0; i < micro_batches; ++i) {
      if (i + ahead < micro_batches) steps.push_back(Forward(i + ahead));
      steps.push_back(Backward(i));
    }
  }
  return schedule;
}

Result<PipelineSchedule> InterleavedSchedule(int64_t ranks, int64_t chunks, int64_t micro_batches) {
  if (chunks == 1) return OneForwardOneBackwardSchedule(ranks, micro_batches);
  if (micro_batches % ranks != 0) {
    return InvalidError("an interleaved pipeline of " + std::to_string(ranks) + " ranks with " +
                        std::to_string(micro_batches) +
                        " micro-batches; hint: their number is a multiple of the ranks");
  }
  PipelineSchedule schedule = Empty(ranks, chunks, micro_batches);
  // Micro-batches go in groups of as many as there are ranks, each group through all chunks.
  const int64_t total = micro_batches * chunks;
  const auto chunk_of = [&](int64_t k) { return k % (ranks * chunks) / ranks; };
  const auto micro_batch_of = [&](int64_t k) { return k / (ranks * chunks) * ranks + k % ranks; };
  for (int64_t r = 0; r < ranks; ++r) {
    std::vector<PipelineStep>& steps = schedule.steps[static_cast<size_t>(r)];
    const auto forward = [&](int64_t k) {
      steps.push_back(Forward(micro_batch_of(k), chunk_of(k)));
    };
    const int64_t ahead = std::min(total, 2 * (ranks - 1 - r) + (chunks - 1) * ranks);
    for (int64_t k = 0; k < ahead; ++k) forward(k);
    for (int64_t k = 0; k < total; ++k) {
      if (k + ahead < total) forward(k + ahead);
      steps.push_back(Backward(micro_batch_of(k), chunks - 1 - chunk_of(k)));
    }
  }
  return schedule;
}

Status CheckSchedule(const PipelineSchedule& schedule) {
  const StageCost any{1, 1, 1, 1};
  return SimulatePipeline(schedule,
                          {std::vector<StageCost>(static_cast<size_t>(schedule.stages()), any), 0})
      .status();
}

std::string FormatSchedule(const PipelineSchedule& schedule) {
  std::string text;
  for (const std::vector<PipelineStep>& steps : schedule.steps) {
    for (size_t i = 0; i < steps.size(); ++i) {
      if (i > 0) text += ' ';
      text += PipelineOpName(steps[i].op);
      text += std::to_string(steps[i].micro_batch);
      text.append(static_cast<size_t>(steps[i].chunk), '\'');
    }
    text += '\n';
  }
  return text;
}

}  // namespace weft
