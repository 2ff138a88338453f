#pragma once

#include <string>

#include "worker/engine/checkpoint/manifest.h"
#include "worker/trainer/testing/trainer_process.h"

namespace weft::trainer {

/// Runs ranks that make rounds by time.
class TimedRoundsFixture : public TrainerProcessTest {
 protected:
  static constexpr int64_t kSteps = 60;

  AttemptSpec TimedSpec(const std::string& run, int64_t ranks) const {
    AttemptSpec spec = Spec(run);
    spec.job.train.steps = kSteps;
    spec.job.train.local_round_seconds = 0.6;
    spec.job.checkpoint.every_steps = 5;
    spec.job.checkpoint.keep_last = 20;
    Join(spec, ranks);
    return spec;
  }
  static void Join(AttemptSpec& spec, int64_t ranks) {
    spec.plan.mesh.data = spec.world_size = spec.job.resources.ranks = ranks;
    spec.plan.micro_batch = 1;
    spec.plan.accumulation_steps = spec.job.train.global_batch / ranks;
  }

  engine::CheckpointManifest Manifest(const AttemptSpec& spec, int64_t step) {
    auto manifest = engine::ReadManifest(env_, engine::CheckpointPath(spec.run_dir, step));
    EXPECT_TRUE(manifest.ok()) << manifest.status().message();
    return manifest.ok() ? *manifest : engine::CheckpointManifest();
  }
  Json Summary(const AttemptSpec& spec) {
    return *ParseJson(*ReadFile(env_, spec.run_dir + "/summary.json"));
  }
};

}  // namespace weft::trainer
