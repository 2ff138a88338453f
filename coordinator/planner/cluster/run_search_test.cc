// The search over runs of a cluster finds what trying each one finds.
#include "coordinator/planner/cluster/run_search.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "common/rng.h"
#include "coordinator/planner/cluster/run_memory.h"

namespace weft::planner {
namespace {

AcceleratorSpec H100() {
  return *FindAccelerator("H100-SXM");
}

SoftwareStack Stack() {
  return *FindStack("weft");
}

DecoderShape Decoder(int64_t experts, int64_t layers = 6) {
  return {.layers = layers,
          .width = 1024,
          .heads = 16,
          .key_heads = 4,
          .mlp_width = 2048,
          .gated = true,
          .vocabulary = 32000,
          .sequence_length = 512,
          .experts = std::max<int64_t>(experts, 1),
          .experts_per_token = experts > 0 ? 2 : 1};
}

/// Every run, one after the other.
std::vector<double> EachRun(const DecoderShape& model, int64_t devices, int64_t batch,
                            double memory, int64_t& considered) {
  std::vector<double> seconds;
  ClusterRun run;
  run.model = model;
  run.global_batch = batch;
  for (run.tensor = 1; run.tensor <= 8; ++run.tensor) {
    if (model.heads % run.tensor != 0 || model.mlp_width % run.tensor != 0) continue;
    for (run.pipeline = 1; run.pipeline <= model.layers; ++run.pipeline) {
      for (run.data = 1; run.data <= devices; ++run.data) {
        if (run.Devices() != devices) continue;
        for (run.expert = 1; run.expert <= model.experts; ++run.expert) {
          for (run.stages_per_rank = 1; run.stages_per_rank <= model.layers;
               ++run.stages_per_rank) {
            if (model.layers % (run.pipeline * run.stages_per_rank) != 0) continue;
            if (run.pipeline == 1 && run.stages_per_rank > 1) continue;
            for (run.zero_stage = 0; run.zero_stage < 4; ++run.zero_stage) {
              if (run.pipeline > 1 && run.zero_stage > 1) continue;
              for (const auto recomputation : {Recomputation::kNone, Recomputation::kBlock}) {
                run.recomputation = recomputation;
                for (run.micro_batch = 1; run.micro_batch <= batch; ++run.micro_batch) {
                  const Result<StepLedger> step = PredictStep(H100(), Stack(), run);
                  if (!step.ok()) continue;
                  ++considered;
                  if (MemoryOf(Stack(), run).Total() <= memory) seconds.push_back(step->Seconds());
                }
              }
            }
          }
        }
      }
    }
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

TEST(FastestRuns, AreThoseOfTryingEach) {
  PhiloxStream random({5, 0, 0});
  const auto pick = [&](const std::vector<int64_t>& values) {
    return values[random.Next() % values.size()];
  };
  int shared = 0, without_room = 0;
  for (int trial = 0; trial < 12; ++trial) {
    const int64_t experts = pick({0, 4, 6});
    const DecoderShape model = Decoder(experts, pick({4, 6}));
    const int64_t devices = pick({4, 12, 16}), batch = pick({12, 16, 48});
    const auto memory = static_cast<double>(pick({1, 2, 4, 80})) * 1e9;
    int64_t considered = 0;
    const std::vector<double> all = EachRun(model, devices, batch, memory, considered);
    const Result<RunSearch> found =
        FastestRuns(H100(), Stack(), model, "bf16", devices, batch, memory);
    ASSERT_EQ(found.ok(), !all.empty()) << trial;
    if (!found.ok()) {
      ++without_room;
      continue;
    }
    EXPECT_EQ(found->considered, considered) << trial;
    EXPECT_EQ(found->fit, std::ssize(all)) << trial;
    ASSERT_EQ(found->fastest.size(), std::min(all.size(), kRunsKept));
    for (size_t i = 0; i < found->fastest.size(); ++i) {
      EXPECT_EQ(found->fastest[i].seconds, all[i]) << trial << ", " << i;
    }
    if (found->fastest.front().run.expert > 1) ++shared;
    for (const int threads : {2, 5}) {
      const Result<RunSearch> again =
          FastestRuns(H100(), Stack(), model, "bf16", devices, batch, memory, threads);
      ASSERT_TRUE(again.ok());
      EXPECT_EQ(again->considered, found->considered);
      for (size_t i = 0; i < found->fastest.size(); ++i) {
        EXPECT_EQ(again->fastest[i].seconds, found->fastest[i].seconds);
        EXPECT_EQ(again->fastest[i].bytes, found->fastest[i].bytes);
        EXPECT_EQ(again->fastest[i].run.tensor, found->fastest[i].run.tensor);
        EXPECT_EQ(again->fastest[i].run.expert, found->fastest[i].run.expert);
      }
    }
  }
  // Otherwise nothing was at stake.
  EXPECT_GT(shared, 1);
  EXPECT_LT(without_room, 6);
}

TEST(FastestRuns, AreNeverSlowerWithMoreMemory) {
  double before = INFINITY;
  for (const double memory : {1e9, 2e9, 5e9, 20e9, 80e9}) {
    const Result<RunSearch> found =
        FastestRuns(H100(), Stack(), Decoder(4), "bf16", 16, 64, memory);
    if (!found.ok()) continue;
    EXPECT_LE(found->fastest.front().seconds, before);
    before = found->fastest.front().seconds;
  }
  EXPECT_LT(before, INFINITY);
  EXPECT_FALSE(FastestRuns(H100(), Stack(), Decoder(4), "bf16", 16, 64, 1e6).ok());
}

}  // namespace
}  // namespace weft::planner
