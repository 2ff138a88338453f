// What phases hand on at their seams: the learning rate of the next one, and weights through
// several levels.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/json.h"
#include "worker/trainer/phases_testing.h"

namespace weft::trainer {
namespace {

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
  }
  return largest;
}

class PhaseSeamsTest : public PhasesTest {
 protected:
  /// The learning rates of the steps of a run, or of a phase.
  std::vector<double> Rates(const std::string& run) const {
    std::vector<double> rates;
    std::istringstream lines(Read(run + "/loss.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      rates.push_back(ParseJson(line)->at("learning_rate").get<double>());
    }
    return rates;
  }

  /// Four blocks and 64 columns, then half, then a quarter of each, and back.
  JobSpec ThreeLevels(const std::string& family) const {
    JobSpec job = VCycleOf(family);
    job.model.layers = job.model.heads = 4;
    job.model.width = 64;
    if (family == "llama") {
      job.model.heads = 8;
      job.model.kv_heads = 4;
      job.model.mlp_width = 192;
    }
    const bool images = family == "vit";  // they learn more slowly
    if (images) {
      job.optimizer.learning_rate = 2e-3;
      job.train.eval_sequences = 128;
    }
    job.phases = {Phase(images ? 40 : 20), Phase(images ? 20 : 6, "coalesce"),
                  Phase(images ? 40 : 8, "coalesce"), Phase(6, "decoalesce"),
                  Phase(6, "decoalesce")};
    job.phases[1].layers = job.phases[3].layers = 2;
    job.phases[1].width = job.phases[3].width = 32;
    job.phases[2].layers = 1;
    job.phases[2].width = 16;
    return job;
  }
};

// The rewind of MSG: the rate goes back to the peak, though the optimizer's state is kept.
TEST_F(PhaseSeamsTest, APhaseBeginsWithTheRateOfItsOwnSchedule) {
  JobSpec job = Masked();
  job.phases[0].steps = 6;
  job.phases[1].steps = 8;
  job.phases.push_back(Phase(3));
  job.schedule.kind = "cosine";
  job.schedule.warmup_steps = 2;
  job.schedule.final_ratio = 0.1;
  job.phases[1].warmup_steps = 0;
  job.phases[1].learning_rate = 2e-3;
  job.phases[2].schedule = "constant";
  const auto cosine = [](double progress) {
    return 0.1 + 0.9 * 0.5 * (1 + std::cos(std::numbers::pi * progress));
  };
  // Stopped in the second step after growth: what is left has the rates of its own steps.
  ASSERT_TRUE(Run("rates", job, 6 + 2).ok());
  ASSERT_TRUE(Run("rates", job).ok());
  const std::vector<double> first = Rates("rates/phase-1"), grown = Rates("rates/phase-2"),
                            last = Rates("rates");
  ASSERT_EQ(first.size(), 6u);
  ASSERT_EQ(grown.size(), 8u);
  ASSERT_EQ(last.size(), 3u);
  EXPECT_NEAR(first[0], 3e-3 / 2, 1e-12);
  EXPECT_NEAR(first[1], 3e-3, 1e-12);
  EXPECT_NEAR(first[5], 3e-3 * 0.1, 1e-12);
  for (size_t i = 0; i < grown.size(); ++i) {
    EXPECT_NEAR(grown[i], 2e-3 * cosine(static_cast<double>(i + 1) / 8), 1e-12) << i;
  }
  EXPECT_GT(grown[0], 6 * first[5]) << "without a warm-up it does not go on from there";
  EXPECT_NEAR(last[0], 3e-3 / 2, 1e-12) << "the warm-up of the job";
  EXPECT_NEAR(last[1], 3e-3, 1e-12);
  EXPECT_NEAR(last[2], 3e-3, 1e-12);
  EXPECT_EQ(Manifest("rates/phase-2").updates, 6 + 8) << "the optimizer's state was kept";
}

TEST_F(PhaseSeamsTest, ThreeLevelsGoUpToWhatTheyCameFrom) {
  for (const char* family : {"llama", "bert", "vit"}) {
    SCOPED_TRACE(family);
    const std::string name = family;
    const JobSpec job = ThreeLevels(name);
    ASSERT_TRUE(Run(name, job).ok());
    const RunSummary summary = Summary(name);
    ASSERT_EQ(summary.phases.size(), 5u);
    const double random = FreshLoss(name + "-fresh", job);
    const double learned = random - *summary.phases[0].validation_loss_nats;
    EXPECT_GT(learned, name == "vit" ? 0.01 : 1.0);
    for (const size_t up : {3, 4}) {
      EXPECT_GT((random - *summary.phases[up].start_validation_loss_nats) / learned, 0.5) << up;
    }
  }
}

// A norm of the first block is repeated as it is, so that the mixture can be said without growth.
TEST_F(PhaseSeamsTest, EachLevelIsMixedWithWhatItWasBefore) {
  struct Norm {
    const char* family;
    const char* name;
  };
  constexpr Norm kNorms[] = {{"llama", "model.layers.0.input_layernorm.weight"},
                             {"bert", "bert.encoder.layer.0.output.LayerNorm.weight"},
                             {"vit", "vit.encoder.layer.0.layernorm_before.weight"}};
  for (const Norm& norm : kNorms) {
    SCOPED_TRACE(norm.family);
    const std::string run = norm.family;
    // Down, up, down and up again: the last phase is mixed with the third, and not with the first.
    JobSpec job = ThreeLevels(run);
    job.phases = {Phase(4),
                  Phase(4, "coalesce"),
                  Phase(4, "decoalesce"),
                  Phase(4, "coalesce"),
                  Phase(1, "coalesce"),
                  Phase(1, "decoalesce"),
                  Phase(1, "decoalesce")};
    job.phases[1].layers = job.phases[3].layers = job.phases[5].layers = 2;
    job.phases[1].width = job.phases[3].width = job.phases[5].width = 32;
    job.phases[4].layers = 1;
    job.phases[4].width = 16;
    job.phases[6].growth.alpha = 0.25;
    // They end as they begin.
    job.phases[5].learning_rate = job.phases[6].learning_rate = 1e-12;
    ASSERT_TRUE(Run(run, job).ok());
    const auto of = [&](size_t phase) {
      const std::string folder = PhaseFolder(job, phase, run);
      return Parameter(folder, norm.name, {JobOfPhase(job, phase).model.width});
    };
    const auto expect_mixed = [&](size_t phase, double alpha, size_t larger) {
      const std::vector<float> mixed = of(phase), small = of(phase - 1), large = of(larger);
      for (size_t i = 0; i < mixed.size(); ++i) {
        ASSERT_NEAR(mixed[i], (1 - alpha) * large[i] + alpha * small[i % small.size()], 1e-6)
            << "phase " << phase << ", number " << i;
      }
    };
    expect_mixed(5, 0.5, 3);
    expect_mixed(6, 0.25, 2);
    // Others of their sizes differ by far more.
    EXPECT_GT(LargestDifference(of(3), of(1)), 1e-4);
    EXPECT_GT(LargestDifference(of(2), of(0)), 1e-4);
  }
}

}  // namespace
}  // namespace weft::trainer
