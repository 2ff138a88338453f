// Data-parallel ranks with state in their host memory pools against the same ranks without: the
// same bits.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/env_fault.h"
#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/comm/rank_threads.h"
#include "worker/engine/techniques/offload/testing.h"
#include "worker/engine/testing/product_kind.h"
#include "worker/engine/testing/saved_state.h"

namespace weft::engine {
namespace {

/// How ranks train.
struct RunConfig {
  int ranks = 2;
  int64_t stage = 1;
  std::string precision = "fp32";
  int64_t accumulation = 1;
  int64_t shard_ranks = 0;
  std::string optimizer = "host";
  std::string parameters = "none";
  std::string activations = "none";
};

/// What training leaves and reports.
struct Outcome {
  SavedState state;
  std::vector<std::vector<StepReport>> reports;  ///< By rank.
  double evaluation = 0;
  // These are of rank 0.
  LinkTotals down, up;  ///< Of the last step, with what it leaves to come.
  CollectiveTotals groups;
  MemoryBreakdown device, host;
  int64_t file_bytes = 0;
};

using Start = std::function<void(Training&, Collective&)>;

Plan PlanOf(const JobSpec& job, const RunConfig& way) {
  Plan plan = TinyPlan(way.precision, job.train.global_batch / way.ranks / way.accumulation,
                       way.accumulation);
  plan.mesh.data = way.ranks;
  plan.zero_stage = way.ranks > 1 ? way.stage : 0;
  plan.zero_shard_ranks = way.shard_ranks;
  plan.offload_optimizer = way.optimizer;
  // Parts of parameters are where they are updated.
  const bool parts = plan.zero_stage > 2 && way.optimizer != "none";
  plan.offload_parameters = parts && way.parameters == "none" ? "host" : way.parameters;
  plan.offload_activations = way.activations;
  return plan;
}

/// `steps` steps, and an evaluation if there are any, after `start` on every rank.
Outcome Train(const JobSpec& job, const RunConfig& way, bool offloads, int steps,
              const Start& start = {}) {
  Outcome outcome;
  outcome.reports.resize(static_cast<size_t>(way.ranks));
  std::mutex mutex;
  RunRanks(way.ranks, std::chrono::seconds(60), [&](Collective& group) {
    Training run;
    const Status made =
        run.Make(job, PlanOf(job, way), offloads, nullptr, way.ranks > 1 ? &group : nullptr);
    ASSERT_TRUE(made.ok()) << made.message();
    if (start) start(run, group);
    HostMemoryPool* const host = run.context.host;
    LinkTotals down, up;
    const auto on_link = [&] {
      if (host == nullptr) return;
      ASSERT_TRUE(run.trainer->FinishUpdates().ok());
      down = host->down().totals(), up = host->up().totals();
    };
    LinkTotals down_before, up_before;
    for (int step = 0; step < steps; ++step) {
      on_link();
      down_before = down, up_before = up;
      const auto report = run.trainer->Step();
      ASSERT_TRUE(report.ok()) << report.status().message();
      outcome.reports[static_cast<size_t>(group.rank())].push_back(*report);
    }
    on_link();
    const CollectiveTotals totals = group.account().totals();
    if (steps > 0) {
      const auto evaluation = run.trainer->Evaluate();
      ASSERT_TRUE(evaluation.ok()) << evaluation.status().message();
      if (group.rank() == 0) outcome.evaluation = evaluation->loss;
    }
    ASSERT_TRUE(run.trainer->FinishUpdates().ok());
    const std::lock_guard lock(mutex);
    outcome.state.Add(run.trainer->StateTensors());
    if (group.rank() > 0) return;
    outcome.down.bytes = down.bytes - down_before.bytes;
    outcome.up.bytes = up.bytes - up_before.bytes;
    outcome.groups = totals;
    outcome.device = run.context.allocator->Peaks();
    if (host == nullptr) return;
    outcome.host = host->allocator().Peaks();
    outcome.file_bytes = host->files().bytes;
  });
  return outcome;
}

/// Norms may add up in another order. `other_parts`: ranks have other shards of the same, so that
/// bf16 parts are filled up elsewhere.
void ExpectSame(const Outcome& offloaded, const Outcome& plain, bool other_parts = false) {
  constexpr double most = 1e-12;
  EXPECT_EQ(Differing(offloaded.state.tensors, plain.state.tensors), "");
  EXPECT_EQ(offloaded.evaluation, plain.evaluation);
  // After a step that is skipped nothing is gathered.
  const bool updates = std::none_of(plain.reports[0].begin(), plain.reports[0].end(),
                                    [](const StepReport& report) { return report.skipped; });
  if (updates) {
    EXPECT_NEAR(offloaded.groups.sent_bytes, plain.groups.sent_bytes,
                other_parts ? 0.01 * plain.groups.sent_bytes : 0);
  }
  ASSERT_EQ(offloaded.reports.size(), plain.reports.size());
  for (size_t rank = 0; rank < plain.reports.size(); ++rank) {
    ASSERT_EQ(offloaded.reports[rank].size(), plain.reports[rank].size());
    for (size_t i = 0; i < plain.reports[rank].size(); ++i) {
      const StepReport &a = offloaded.reports[rank][i], &b = plain.reports[rank][i];
      EXPECT_EQ(a.loss, b.loss) << i;
      EXPECT_EQ(a.skipped, b.skipped);
      EXPECT_EQ(a.loss_scale, b.loss_scale);
      if (b.skipped) continue;
      EXPECT_NEAR(a.gradient_norm, b.gradient_norm, most) << i;
      EXPECT_EQ(a.technique_metrics, b.technique_metrics);
      ASSERT_EQ(a.norms.size(), b.norms.size());
      for (size_t g = 0; g < a.norms.size(); ++g) {
        EXPECT_NEAR(a.norms[g].gradient, b.norms[g].gradient, most);
        EXPECT_EQ(a.norms[g].parameter, b.norms[g].parameter);
      }
    }
  }
}

// Threads meet in every precision as in these: with losses that are scaled, and without.
#if defined(__SANITIZE_THREAD__)
constexpr const char* kPrecisions[] = {"fp16", "bf16_pure"};
#else
constexpr const char* kPrecisions[] = {"fp32", "bf16", "fp16", "bf16_pure"};
#endif

TEST(OffloadedRanks, HaveTheBitsOfRanksWithoutItInEveryStageAndPrecision) {
  for (const char* precision : kPrecisions) {
    for (const int64_t stage : {0, 1, 2, 3}) {
      for (const int64_t accumulation : {1, 3}) {
        SCOPED_TRACE(std::string(precision) + ", stage " + std::to_string(stage) + ", " +
                     std::to_string(accumulation) + " micro-batches");
        JobSpec job = TinyJob(6);
        job.train.log_every_steps = 2;
        job.train.loss_scaling.initial = 0x1p24;  // overflows at first
        const int steps = PrecisionOf(precision).loss_scaling ? 6 : 3;
        RunConfig way = {2, stage, precision, accumulation};
        const Outcome plain = Train(job, way, false, steps);
        ExpectSame(Train(job, way, true, steps), plain);
        way.optimizer = "nvme";
        if (accumulation == 1) ExpectSame(Train(job, way, true, steps), plain);
      }
    }
  }
}

TEST(OffloadedRanks, HaveThemInGroupsAndWithWhatElseATrainingHas) {
  JobSpec averaged = LlamaJob();
  averaged.train.global_batch = 12;
  averaged.model.width = 24;  // parts are cut at odd places
  averaged.model.heads = 3;
  averaged.model.vocab_size = 37;
  averaged.train.averaging.kind = "ema";
  averaged.train.averaging.every_steps = 1;
  averaged.train.gradient_clip_norm = 0.01;
  JobSpec frozen = TinyJob(12);
  frozen.model.layers = 4;
  frozen.model.distinct_blocks = 2;
  frozen.model.freeze = {"*.h.0.attn.*", "*ln_f*"};
  frozen.train.gradient_noise_scale = true;
  for (const JobSpec& job : {averaged, frozen}) {
    for (const int64_t stage : {0, 1, 2, 3}) {
      for (const RunConfig& way :
           {RunConfig{3, stage, "bf16", 2}, RunConfig{4, stage, "fp32", 3, 2}}) {
        if (stage == 0 && way.shard_ranks > 0) continue;
        SCOPED_TRACE(job.model.family + ", stage " + std::to_string(stage) + ", " +
                     std::to_string(way.ranks) + " ranks");
        const Outcome plain = Train(job, way, false, 3);
        ExpectSame(Train(job, way, true, 3), plain);
        if (job.train.averaging.kind != "none") continue;
        RunConfig filed = way;
        filed.optimizer = filed.parameters = "nvme";
        ExpectSame(Train(job, filed, true, 3), plain, stage == 1 || stage == 2);
      }
    }
  }
}

TEST(OffloadedRanks, ParametersAndActivationsWaitOnTheHostOfEachRank) {
  JobSpec job = TinyJob(8);
  job.model.layers = 4;
  for (const int64_t stage : {0, 1, 2, 3}) {
    for (const char* optimizer : {"none", "host"}) {
      const bool host = optimizer == std::string("host");
      SCOPED_TRACE(std::string(optimizer) + ", stage " + std::to_string(stage));
      const RunConfig way = {2, stage, "bf16", 2, 0, optimizer, host ? "host" : "none", "host"};
      ExpectSame(Train(job, way, true, 3), Train(job, way, false, 3));
    }
  }
}

TEST(OffloadedRanks, ParametersResideInAFileOfEachRank) {
  JobSpec job = TinyJob(12);
  job.model.layers = 4;
  job.train.log_every_steps = 2;
  for (const char* precision : {"fp32", "bf16_pure"}) {
    for (const int64_t stage : {0, 1, 2, 3}) {
      for (const auto& [optimizer, accumulation] : {std::pair("host", 1), std::pair("nvme", 3)}) {
        SCOPED_TRACE(std::string(precision) + " " + optimizer + ", stage " + std::to_string(stage));
        const RunConfig way = {2, stage, precision, accumulation, 0, optimizer, "nvme", "host"};
        ExpectSame(Train(job, way, true, 3), Train(job, way, false, 3), stage == 1 || stage == 2);
      }
    }
  }
}

TEST(OffloadedRanks, AnyNumberOfThemGoesOnFromACheckpointOfAnyOther) {
  const JobSpec job = TinyJob(12);
  const auto hop = [&](const RunConfig& from, bool first, const RunConfig& to, bool second) {
    FaultEnv env;
    ASSERT_TRUE(env.CreateDirs("/c").ok());
    CheckpointManifest manifest;
    std::mutex mutex;
    TrainCounters counters;
    const Outcome saved = Train(job, from, first, 0, [&](Training& run, Collective& group) {
      for (int i = 0; i < 2; ++i) ASSERT_TRUE(run.trainer->Step().ok());
      ASSERT_TRUE(run.trainer->FinishUpdates().ok());
      std::vector<NamedTensor> tensors;
      for (NamedTensor& tensor : run.trainer->StateTensors()) {
        if (tensor.saved) tensors.push_back(std::move(tensor));
      }
      const std::lock_guard lock(mutex);
      counters = run.trainer->counters();
      if (tensors.empty()) return;
      auto file = WriteTensorFile(env, "/c", group.rank(), group.size(), tensors);
      ASSERT_TRUE(file.ok()) << file.status().message();
      manifest.files.push_back(*file);
    });
    const auto load = [&](Training& run, Collective&) {
      const Status loaded = LoadTensors(env, "/c", manifest, run.trainer->StateTensors());
      ASSERT_TRUE(loaded.ok()) << loaded.message();
      ASSERT_TRUE(run.trainer->Restored(counters).ok());
    };
    EXPECT_EQ(Differing(Train(job, to, second, 0, load).state.tensors, saved.state.tensors), "");
    ExpectSame(Train(job, to, second, 2, load), Train(job, to, false, 2, load));
  };
  const RunConfig one = {1, 0}, two = {2, 1}, three = {3, 2}, plain = {2, 0};
  const RunConfig parts = {4, 3};
  RunConfig file = two, alone = one;
  file.optimizer = alone.optimizer = "nvme";
  RunConfig all_in_files = plain;
  all_in_files.optimizer = all_in_files.parameters = "nvme";
  hop(two, true, three, true);
  hop(three, true, two, true);
  hop(two, false, three, true);
  hop(three, true, plain, false);
  hop(one, true, two, true);
  hop(two, true, one, true);
  hop(plain, true, three, true);
  hop(three, true, plain, true);
  hop(file, true, three, true);
  hop(three, true, file, true);
  hop(plain, false, file, true);
  hop(file, true, alone, true);
  hop(alone, true, file, true);
  hop(file, true, all_in_files, true);
  hop(all_in_files, true, three, true);
  hop(parts, true, file, true);
  hop(three, true, parts, true);
  hop(parts, true, parts, false);
  RunConfig filed_parts = parts, filed_three = three;
  filed_parts.parameters = filed_three.parameters = "nvme";
  hop(filed_parts, true, filed_three, true);
  hop(filed_three, true, parts, false);
  hop(plain, false, filed_parts, true);
}

// Sums have another order, hence not the same bits.
TEST(OffloadedRanks, DelayTheirUpdatesAsOneRankDoes) {
  constexpr int kSteps = 60;
  JobSpec job = TinyJob(4);
  job.optimizer.learning_rate = 3e-3;
  const auto losses_of = [&](int ranks, bool delayed) {
    std::vector<double> losses;
    RunRanks(ranks, std::chrono::seconds(60), [&](Collective& group) {
      Plan plan = PlanOf(job, {ranks, 0});
      plan.delayed_update = delayed;
      Training run;
      const Status made = run.Make(job, plan, true, nullptr, ranks > 1 ? &group : nullptr);
      ASSERT_TRUE(made.ok()) << made.message();
      for (int step = 0; step < kSteps; ++step) {
        const auto report = run.trainer->Step();
        ASSERT_TRUE(report.ok()) << report.status().message();
        if (group.rank() == 0) losses.push_back(report->loss);
      }
    });
    return losses;
  };
  const std::vector<double> two = losses_of(2, true), one = losses_of(1, true),
                            early = losses_of(1, false);
  ASSERT_EQ(two.size(), one.size());
  double apart = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(two[i], one[i], 2e-6) << i;
    apart = std::max(apart, std::abs(one[i] - early[i]));
  }
  EXPECT_GT(apart, 1e-4) << "the delay shows";
}

TEST(OffloadedRanks, SendOverTheLinkWhatTheyUpdate) {
  constexpr int kRanks = 2;
  const JobSpec job = TinyJob(6);
  const ShardedParameters sharded =
      ShardParameters(job.model, PrecisionOf("fp32"), DType::kF32, kRanks);
  int64_t trained = 0, padded = 0;
  {
    Training run(job, TinyPlan("fp32", 6), true);
    const ParameterSet& parameters = run.model->parameters();
    for (int64_t i = 0; i < parameters.size(); ++i) trained += parameters[i].shape.Elements();
    padded = parameters.GradientCount();
  }
  int64_t weights = 0;
  for (const int64_t stage : {0, 1, 2, 3}) {
    for (const int64_t passes : {1, 3}) {
      SCOPED_TRACE("stage " + std::to_string(stage) + ", " + std::to_string(passes));
      const Outcome run = Train(job, {kRanks, stage, "fp32", passes}, true, 2);
      const int64_t kept = stage == 0 ? 4 * trained : 4 * trained / kRanks;
      const int64_t down = stage > 1 ? passes * kept : (passes - 1) * 4 * trained + kept;
      // Where ranks shard the padding, which is not offloaded, one has less of it.
      const auto padding = static_cast<double>(stage == 0 ? 0 : passes * 4 * (padded - trained));
      EXPECT_NEAR(static_cast<double>(run.down.bytes), static_cast<double>(down), padding);
      if (stage > 2) {
        EXPECT_EQ(run.up.bytes,
                  passes * (sharded.forward_payload + sharded.backward_payload) / kRanks);
        continue;
      }
      const int64_t sums = stage == 2 ? 0 : (passes - 1) * 4 * trained;
      if (weights == 0) weights = run.up.bytes;
      EXPECT_EQ(run.up.bytes - sums, weights);
    }
  }
  EXPECT_GT(weights, 0);
}

TEST(OffloadedRanks, TakeOfEachTierWhatTheModelSays) {
  JobSpec job = TinyJob(8);
  job.model.layers = 3;
  job.model.width = 128;
  job.model.vocab_size = 2500;
  job.train.eval_sequences = 2;
  const auto near = [](const char* what, int64_t taken, int64_t promised) {
    if (promised == 0) {
      EXPECT_EQ(taken, 0) << what;
    } else {
      EXPECT_NEAR(static_cast<double>(taken) / static_cast<double>(promised), 1, 0.01) << what;
    }
  };
  for (const int ranks : {2, 4}) {
    for (const int64_t stage : {0, 1, 2, 3}) {
      for (const auto& [optimizer, parameters] :
           {std::pair("host", "none"), std::pair("host", "host"), std::pair("nvme", "none"),
            std::pair("nvme", "nvme")}) {
        const bool in_file = parameters == std::string("nvme");
        // Four ranks with half of the choices: with every stage, and with every place.
        const int64_t choice = (optimizer == std::string("nvme") ? 1 : 0) +
                               (parameters != std::string("none") ? 1 : 0);
        if (ranks > 2 && (stage + choice) % 2 == 1) continue;
        SCOPED_TRACE("stage " + std::to_string(stage) + ", " + std::to_string(ranks) +
                     " ranks, optimizer " + optimizer + ", parameters " + parameters);
        RunConfig way = {ranks, stage, "fp32", 2};
        way.optimizer = optimizer;
        way.parameters = stage > 2 && !in_file ? "host" : parameters;
        const Outcome run = Train(job, way, true, 2);
        Plan plan = PlanOf(job, way);
        plan.bucket_bytes = kBucketBytes;
        const MemoryInputs inputs = MemoryInputsOf(job, plan, {ProductsOf(DType::kF32)});
        const MemoryBreakdown all = PredictMemory(inputs), device = PredictDeviceTier(inputs);
        near("parameters on the device", run.device.parameters_bytes, device.parameters_bytes);
        near("gradients on the device", run.device.gradients_bytes, device.gradients_bytes);
        near("optimizer on the device", run.device.optimizer_bytes, 0);
        near("activations", run.device.activations_bytes, device.activations_bytes);
        near("communication", run.device.communication_bytes, device.communication_bytes);
        near("parameters", run.host.parameters_bytes,
             all.parameters_bytes - device.parameters_bytes);
        near("gradients", run.host.gradients_bytes, all.gradients_bytes - device.gradients_bytes);
        near("optimizer", run.host.optimizer_bytes, all.optimizer_bytes);
        near("files", run.file_bytes, FileBytes(inputs));
      }
    }
  }
}

}  // namespace
}  // namespace weft::engine
