#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "worker/engine/techniques/offload/planned_offload.h"
#include "worker/engine/tensor/compute_device.h"
#include "worker/engine/testing/mesh_run.h"

namespace weft::engine {

/// What a rank with something in its host memory pool came to.
struct Offloaded {
  std::vector<StepReport> reports;
  MemoryBreakdown device, host;  ///< Peaks of the tiers in training steps.
  CollectiveTotals groups;       ///< Of all its groups, but what the host says.
  double evaluation = 0;
  SavedState state;
  int64_t up_bytes = 0, down_bytes = 0;  ///< Over its link in the last step.
  int64_t moved_bytes = 0;               ///< Through its files.
  int64_t gradient_bytes = 0;            ///< Of all that it trains.
};

/// Trains as TrainRank, with what c.plan offloads.
inline Offloaded TrainOffloaded(const MeshCase& c, Collective& world) {
  kernels::cpu::SetThreads(1);
  Offloaded outcome;
  MeshRanks ranks(c, world);
  auto opened = ComputeDevice::Open(
      {.device = world.device(), .host = HostMemoryPoolOf(c.plan), .chunk_bytes = size_t{1} << 20});
  WEFT_CHECK(opened.ok(), opened.status().message());
  ComputeDevice& device = **opened;
  Context context = device.NewContext();
  auto model = NewModel(context, c.job.model, ranks.options);
  WEFT_CHECK(model.ok(), model.status().message());
  ParameterSet& parameters = (*model)->parameters();
  WEFT_CHECK(parameters.Initialize(1).ok(), "initialize");
  auto reduces = NewReducer(context, c.plan, ranks.groups.Along(kGradientAxes), &parameters,
                            (*model)->precision().products, ranks.groups.Along(kSameExpertAxes));
  WEFT_CHECK(reduces.ok(), reduces.status().message());
  const PlannedOffload offload = PlannedOffload::Of(c.plan, context, &parameters, reduces->get());
  GradientReducer* reducer = reduces->get();
  if (offload.gradients != nullptr) reducer = offload.gradients.get();
  std::unique_ptr<BatchSource> tokens =
      std::make_unique<RandomTokens>(c.job.model.vocab_size, c.length());
  if (const ContextParallel* context_ranks = ranks.options.context) {
    tokens = std::make_unique<ContextChunks>(std::move(tokens), context_ranks->rank(),
                                             context_ranks->degree());
  }
  auto trainer = Trainer::New(c.job, c.plan,
                              {.context = &context,
                               .model = model->get(),
                               .train = tokens.get(),
                               .validation = tokens.get(),
                               .reducer = reducer,
                               .rank = ranks.data_rank,
                               .tensor = ranks.options.tensor,
                               .sequences = ranks.options.context,
                               .experts = ranks.options.experts,
                               .pipeline = ranks.pipeline.get()});
  WEFT_CHECK(trainer.ok(), trainer.status().message());
  HostMemoryPool& host = *device.host();
  while (!(*trainer)->finished()) {
    const int64_t up = host.up().totals().bytes, down = host.down().totals().bytes;
    const int64_t moved = host.files().moved_bytes;
    auto report = (*trainer)->Step();
    WEFT_CHECK(report.ok(), report.status().message());
    outcome.reports.push_back(*report);
    WEFT_CHECK((*trainer)->FinishUpdates().ok(), "what goes up during the next step");
    outcome.up_bytes = host.up().totals().bytes - up;
    outcome.down_bytes = host.down().totals().bytes - down;
    outcome.moved_bytes = host.files().moved_bytes - moved;
  }
  outcome.device = outcome.reports.back().device_memory;
  outcome.host = host.allocator().Peaks();
  auto evaluation = (*trainer)->Evaluate();
  WEFT_CHECK(evaluation.ok(), evaluation.status().message());
  outcome.evaluation = evaluation->loss;
  const bool on_device = world.device().type == DeviceType::kCuda;
  outcome.groups = TotalsOf(ranks, reduces->get(), on_device ? &device : nullptr);
  outcome.state.Add((*trainer)->StateTensors(), context.stream);
  for (int64_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].trainable()) outcome.gradient_bytes += 4 * parameters[i].shape.Elements();
  }
  return outcome;
}

/// By rank.
inline std::vector<Offloaded> TrainOffloaded(const MeshCase& c,
                                             DeviceType type = DeviceType::kCpu) {
  std::vector<Offloaded> ranks(static_cast<size_t>(c.ranks()));
  const auto train = [&](Collective& world) {
    ranks[static_cast<size_t>(world.rank())] = TrainOffloaded(c, world);
  };
  RunRanks(static_cast<int>(c.ranks()), std::chrono::seconds(60), train, type);
  return ranks;
}

}  // namespace weft::engine
