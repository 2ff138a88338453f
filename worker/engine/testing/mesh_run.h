#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/env.h"
#include "common/model/pipeline_shape.h"
#include "common/model/sharded_parameters.h"
#include "common/spec/deterministic_mesh.h"
#include "common/spec/local_steps.h"
#include "common/spec/shard_ranks.h"
#include "worker/engine/comm/rank_threads.h"
#include "worker/engine/data/context_chunks.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/techniques/parallel/mesh_groups.h"
#include "worker/engine/techniques/parallel/new_reducer.h"
#include "worker/engine/techniques/parallel/pipeline_parallel.h"
#include "worker/engine/testing/device_run.h"
#include "worker/engine/testing/parallelism.h"
#include "worker/engine/testing/saved_state.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {

/// A training of random tokens on the ranks of plan.mesh, for tests that compare it with that of
/// one rank.
struct MeshCase {
  JobSpec job;
  Plan plan;
  /// What is trained on instead of random tokens, or none: of the whole batch, for each rank.
  std::function<std::unique_ptr<BatchSource>()> tokens = {};
  std::string start = {};  ///< Folder of the weights that it starts from; empty: random ones.
  RoundMembers round_members = {};  ///< As TrainerParts has it.

  int64_t length() const { return SequenceLength(job); }
  int64_t ranks() const { return RankCount(plan.mesh); }
  ReductionAxes reduction_axes() const { return ReductionAxesOf(MakesLocalSteps(job.train)); }
  /// The same on one rank, with as many sequences in a micro-batch.
  MeshCase Whole() const {
    MeshCase one = *this;
    one.plan.accumulation_steps *= plan.mesh.data * plan.mesh.expert;
    one.plan.mesh = {};
    one.plan.tensor_rows = one.plan.pipeline_chunks = 1;
    one.plan.pipeline_schedule = "1f1b";
    one.plan.stage_blocks = {};
    return one;
  }
  /// That of one rank, with the same batches, on these ranks.
  MeshCase On(const Parallelism& parallelism) const {
    MeshCase partitioned = *this;
    parallelism.ApplyTo(partitioned.plan, job.model.layers);
    return partitioned;
  }
};

/// The groups of a rank, and what they make of its model.
struct MeshRanks {
  MeshGroups groups;
  std::optional<TensorParallel> tensor;
  std::optional<ContextParallel> sequences;
  std::optional<ExpertParallel> experts;
  std::unique_ptr<PipelineParallel> pipeline;
  ModelOptions options;
  int64_t data_rank = 0;

  MeshRanks(const MeshCase& c, Collective& world) : options(ModelOptionsOf(c.plan, c.job.train)) {
    options.growth = MaskedGrowthOf(c.job);
    constexpr AxisSet kTensor = {MeshAxis::kTensor}, kContext = {MeshAxis::kContext};
    constexpr AxisSet kPipeline = {MeshAxis::kPipeline}, kExpert = {MeshAxis::kExpert};
    const MeshLayout layout(c.plan.mesh);
    const ReductionAxes axes = c.reduction_axes();
    auto made = MeshGroups::Make(
        &world, layout,
        {kTensor, axes.gradients, kPipeline, kContext, kExpert, axes.same_experts, axes.outer});
    WEFT_CHECK(made.ok(), made.status().message());
    groups = *std::move(made);
    data_rank = layout.ReplicaOf(world.rank());
    if (Collective* group = groups.Along(axes.gradients)) {
      options.update_rank = group->rank() % ShardRanks(c.plan);
    }
    if (Collective* group = groups.Along(kTensor)) {
      auto shared = TensorParallel::New(group, c.plan.sequence_parallel, c.plan.tensor_rows);
      WEFT_CHECK(shared.ok(), shared.status().message());
      options.tensor = &tensor.emplace(*std::move(shared));
    }
    if (Collective* group = groups.Along(kContext)) {
      options.context = &sequences.emplace(group, c.job.resources.context_method);
    }
    if (Collective* group = groups.Along(kExpert)) options.experts = &experts.emplace(group);
    if (Collective* group = groups.Along(kPipeline)) {
      auto connected = PipelineParallel::New(
          group, {c.plan.pipeline_schedule, c.plan.pipeline_chunks, !c.job.model.untied_classifier,
                  FirstTrainedStage(c.job.model, c.plan.stage_blocks)});
      WEFT_CHECK(connected.ok(), connected.status().message());
      pipeline = *std::move(connected);
      auto part = PipelinePartOf(c.plan, pipeline->rank(), c.job.model.layers);
      WEFT_CHECK(part.ok(), part.status().message());
      options.pipeline = *part;
    }
  }
};

/// One rank of a training, or all of it.
struct MeshRank {
  MeshRanks ranks;
  std::unique_ptr<BatchSource> tokens;
  TinyRun run;
  std::unique_ptr<BucketReducer> reducer, outer;
  std::unique_ptr<Trainer> trainer;

  MeshRank(const MeshCase& c, Collective& world)
      : ranks(c, world),
        tokens(c.tokens ? c.tokens()
                        : std::make_unique<RandomTokens>(c.job.model.vocab_size, c.length())),
        run(c.job.model, ranks.options, 0, world.device()) {
    if (!c.start.empty()) {
      Status status = ImportWeights(Env::Posix(), c.start, *run.model);
      if (status.ok()) status = run.model->Pack(run.context);
      WEFT_CHECK(status.ok(), status.message());
    }
    if (const ContextParallel* context_ranks = ranks.options.context) {
      tokens = std::make_unique<ContextChunks>(std::move(tokens), context_ranks->rank(),
                                               context_ranks->degree());
    }
    const ReductionAxes axes = c.reduction_axes();
    Collective* const same_parameters = ranks.groups.Along(axes.gradients);
    const DType gathered =
        GatheredMatrices(run.model->precision().products, IsMeshDeterministic(c.job.train),
                         run.context.stream.device.type == DeviceType::kCuda);
    auto reduces = NewReducer(run.context, c.plan, same_parameters, &run.model->parameters(),
                              gathered, ranks.groups.Along(axes.same_experts));
    WEFT_CHECK(reduces.ok(), reduces.status().message());
    reducer = *std::move(reduces);
    outer = NewOuterReducer(run.context, c.plan, ranks.groups.Along(axes.outer), same_parameters,
                            &run.model->parameters());
    auto trains = Trainer::New(c.job, c.plan,
                               {.context = &run.context,
                                .model = run.model.get(),
                                .train = tokens.get(),
                                .validation = tokens.get(),
                                .reducer = reducer.get(),
                                .outer = outer.get(),
                                .rank = ranks.data_rank,
                                .round_members = c.round_members,
                                .tensor = ranks.options.tensor,
                                .sequences = ranks.options.context,
                                .experts = ranks.options.experts,
                                .pipeline = ranks.pipeline.get()});
    WEFT_CHECK(trains.ok(), trains.status().message());
    trainer = *std::move(trains);
  }
};

/// What a rank's training came to.
struct MeshOutcome {
  std::vector<StepReport> reports;
  double evaluation = 0;
  std::map<std::string, double> evaluation_metrics;  ///< Of techniques.
  SavedState state;                                  ///< What the rank saves.
  /// By parameter, as the two below; none where ranks shard values.
  std::map<std::string, std::vector<float>> values;
  std::map<std::string, Shard> shards;
  std::map<std::string, Shape> shapes;
  CollectiveTotals exchanged, all_to_all;  ///< Of expert-parallel, or context-parallel, ranks.
  CollectiveTotals groups;                 ///< Of all its groups, but what the host says.
  int64_t peak_in_flight = 0;              ///< Of a pipeline.
};

/// What a rank has entered into the account of all its groups.
inline CollectiveTotals EnteredTotals(const MeshRanks& ranks, const BucketReducer* reducer) {
  std::vector<AxisAccount> accounts = ranks.groups.Accounts();
  const auto add = [&](const std::vector<AxisAccount>& more) {
    accounts.insert(accounts.end(), more.begin(), more.end());
  };
  if (ranks.tensor) add(ranks.tensor->Accounts());
  if (ranks.pipeline != nullptr) add(ranks.pipeline->Accounts());
  if (reducer != nullptr) add(reducer->Accounts());
  CollectiveTotals totals;
  for (const AxisAccount& each : accounts) {
    for (int kind = 0; kind < static_cast<int>(CollectiveKind::kControl); ++kind) {
      totals += each.account->totals(static_cast<CollectiveKind>(kind));
    }
  }
  return totals;
}

/// What a rank has done in all its groups. `device`: its own, or none.
inline CollectiveTotals TotalsOf(const MeshRanks& ranks, const BucketReducer* reducer,
                                 ComputeDevice* device) {
  CollectiveTotals totals = EnteredTotals(ranks, reducer);
  if (device == nullptr) return totals;
  // A thread of each group looks for what the device has done, and enters it into the account.
  WEFT_CHECK(device->Synchronize().ok(), "synchronize");
  for (int64_t calls = -1; calls != totals.calls;) {
    calls = totals.calls;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    totals = EnteredTotals(ranks, reducer);
  }
  return totals;
}

inline MeshOutcome TrainRank(const MeshCase& c, Collective& world) {
  MeshRank rank(c, world);
  MeshOutcome outcome;
  while (!rank.trainer->finished()) {
    auto report = rank.trainer->Step();
    WEFT_CHECK(report.ok(), report.status().message());
    outcome.reports.push_back(*report);
  }
  const ModelOptions& options = rank.ranks.options;
  if (options.context != nullptr || options.experts != nullptr) {
    CollectiveAccount& account =
        (options.experts != nullptr ? options.experts->group() : options.context->group())
            .account();
    outcome.exchanged = account.totals(CollectiveKind::kExchange);
    outcome.all_to_all = account.totals(CollectiveKind::kAllToAll);
  }
  auto evaluation = rank.trainer->Evaluate();
  WEFT_CHECK(evaluation.ok(), evaluation.status().message());
  outcome.evaluation = evaluation->loss;
  outcome.evaluation_metrics = evaluation->technique_metrics;
  outcome.peak_in_flight = rank.trainer->peak_in_flight();
  outcome.groups = TotalsOf(rank.ranks, rank.reducer.get(), rank.run.device.get());
  outcome.state.Add(rank.trainer->StateTensors(), rank.run.context.stream);
  const ParameterSet& parameters = rank.run.model->parameters();
  for (int64_t i = 0; i < parameters.size() && !parameters.values_sharded(); ++i) {
    if (parameters[i].quantized_words > 0) continue;
    const std::string& name = parameters[i].name;
    outcome.values[name] = FetchValues(rank.run.context.stream, parameters.value(i));
    outcome.shards[name] = parameters[i].shard;
    outcome.shapes[name] = parameters[i].shape;
  }
  return outcome;
}

/// By rank.
inline std::vector<MeshOutcome> TrainOnMesh(const MeshCase& c, DeviceType type = DeviceType::kCpu) {
  std::vector<MeshOutcome> outcomes(static_cast<size_t>(c.ranks()));
  const auto train = [&](Collective& world) {
    outcomes[static_cast<size_t>(world.rank())] = TrainRank(c, world);
  };
  RunRanks(static_cast<int>(c.ranks()), std::chrono::seconds(60), train, type);
  return outcomes;
}

/// Two ranks have the same of a tensor.
inline bool SamePart(const Shard& a, const Shard& b) {
  const auto same = [](const Shard::Range& one, const Shard::Range& other) {
    return one.begin == other.begin && one.end == other.end;
  };
  return a.axis == b.axis && same(a.across, b.across) &&
         std::equal(a.ranges.begin(), a.ranges.end(), b.ranges.begin(), b.ranges.end(), same);
}

/// The part of a logical tensor that a shard is.
inline std::vector<float> PartOf(const std::vector<float>& whole, const Shard& shard,
                                 const Shape& shape) {
  std::vector<float> part(static_cast<size_t>(shape.Elements()));
  shard.ForEachRun(shape, [&](int64_t to, int64_t from, int64_t count) {
    std::copy_n(whole.begin() + from, count, part.begin() + to);
  });
  return part;
}

/// Largest difference, in units of the largest magnitude of `truth`.
inline double Distance(const std::vector<float>& values, const std::vector<float>& truth) {
  double largest = 0, difference = 0;
  EXPECT_EQ(values.size(), truth.size());
  for (size_t i = 0; i < std::min(values.size(), truth.size()); ++i) {
    largest = std::max<double>(largest, std::fabs(truth[i]));
    difference = std::max<double>(difference, std::fabs(values[i] - truth[i]));
  }
  return largest == 0 ? difference : difference / largest;
}

/// The training of `ranks` is that of `whole`, losses to `loss` and norms to their `norms`-th part,
/// the same on all of them; what they save together is its state, each number once.
inline void ExpectFollows(const std::vector<MeshOutcome>& ranks, const MeshOutcome& whole,
                          double loss, double norms) {
  SavedState state;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    SCOPED_TRACE(rank);
    const MeshOutcome& own = ranks[rank];
    ASSERT_EQ(own.reports.size(), whole.reports.size());
    for (size_t step = 0; step < whole.reports.size(); ++step) {
      const StepReport &report = own.reports[step], &truth = whole.reports[step];
      EXPECT_NEAR(report.loss, truth.loss, loss) << step;
      EXPECT_NEAR(report.gradient_norm, truth.gradient_norm, norms * truth.gradient_norm) << step;
      EXPECT_EQ(report.loss, ranks[0].reports[step].loss) << "the same on all ranks";
      EXPECT_EQ(report.gradient_norm, ranks[0].reports[step].gradient_norm);
      EXPECT_EQ(report.targets, truth.targets);
      EXPECT_EQ(report.skipped, truth.skipped);
      ASSERT_EQ(report.norms.size(), truth.norms.size());
      for (size_t g = 0; g < truth.norms.size(); ++g) {
        EXPECT_EQ(report.norms[g].group, truth.norms[g].group);
        EXPECT_NEAR(report.norms[g].gradient, truth.norms[g].gradient,
                    10 * norms * truth.norms[g].gradient);
        EXPECT_NEAR(report.norms[g].parameter, truth.norms[g].parameter,
                    10 * loss * truth.norms[g].parameter);
      }
    }
    EXPECT_NEAR(own.evaluation, whole.evaluation, loss);
    for (const auto& [name, values] : own.values) {
      for (const MeshOutcome& other : ranks) {
        const auto same = other.values.find(name);
        if (same == other.values.end()) continue;
        if (!SamePart(own.shards.at(name), other.shards.at(name))) continue;
        EXPECT_EQ(values, same->second) << name << " bit for bit wherever it is";
      }
    }
    state.Add(own.state);
  }
  const auto& truth = whole.state.tensors;
  EXPECT_EQ(state.tensors.size(), truth.size()) << "every tensor is saved";
  for (const auto& [name, values] : state.tensors) {
    ASSERT_TRUE(truth.contains(name)) << name;
    EXPECT_EQ(state.saved.at(name), std::ssize(values)) << name << ": each number is saved once";
    EXPECT_LE(Distance(values, truth.at(name)), 1e3 * loss) << name;
  }
}

}  // namespace weft::engine
