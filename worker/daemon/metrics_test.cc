#include "worker/daemon/metrics.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::daemon {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Metrics, TellWhyUpdatesWereDroppedAndTheLossScale) {
  Metrics metrics(Clock::System());
  metrics.BeginRun("r", 1, {}, true);
  EXPECT_THAT(metrics.Text(),
              AllOf(HasSubstr("weft_train_skipped_steps_total{reason=\"overflow\",run=\"r\"} 0"),
                    Not(HasSubstr("noise_scale"))));
  trainer::ProgressMessage step;
  step.loss = 2.5;
  step.loss_scale = 32768;
  metrics.ObserveNumerics("r", step);
  step.skipped = step.overflow = true;
  step.non_finite_gradients = 7;
  step.loss_scale = 16384;
  step.padding_ratio = 0.25;
  metrics.ObserveNumerics("r", step);
  step.overflow = false;
  step.loss.reset();
  metrics.ObserveNumerics("r", step);
  metrics.ObserveNumerics("another", step);
  const std::string text = metrics.Text();
  for (const char* line :
       {"weft_train_loss_scale{run=\"r\"} 16384", "weft_train_padding_ratio{run=\"r\"} 0.25",
        "weft_train_skipped_steps_total{reason=\"overflow\",run=\"r\"} 1",
        "weft_train_skipped_steps_total{reason=\"nonfinite\",run=\"r\"} 1",
        "weft_train_nonfinite_steps_total{run=\"r\",where=\"gradient\"} 2",
        "weft_train_nonfinite_steps_total{run=\"r\",where=\"loss\"} 1"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(Metrics, CountCheckpointsThatDoNotVerify) {
  Metrics metrics(Clock::System());
  metrics.BeginRun("r", 1, {}, true);
  const std::string series = "weft_train_damaged_checkpoints_total{run=\"r\"} ";
  EXPECT_THAT(metrics.Text(), HasSubstr(series + "0"));
  trainer::ProgressMessage step;
  step.damaged_checkpoints = 2;
  metrics.ObserveNumerics("r", step);
  step.damaged_checkpoints = 0;
  metrics.ObserveNumerics("r", step);
  EXPECT_THAT(metrics.Text(), HasSubstr(series + "2"));
}

TEST(Metrics, TellTheTimeBetweenTheNewestCheckpoints) {
  Metrics metrics(Clock::System());
  metrics.BeginRun("r", 1, {}, true);
  v1::Checkpoint checkpoint;
  checkpoint.set_created_at(1000);
  metrics.ObserveCheckpoint("r", checkpoint, {});
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("weft_train_checkpoint_interval_seconds{")));
  checkpoint.set_created_at(1060);
  metrics.ObserveCheckpoint("r", checkpoint, {});
  EXPECT_THAT(metrics.Text(), HasSubstr("weft_train_checkpoint_interval_seconds{run=\"r\"} 60"));
  EXPECT_THAT(metrics.Text(),
              HasSubstr("weft_train_checkpoint_last_verified_timestamp_seconds{run=\"r\"} 1060"));
}

TEST(Metrics, TellWhatTechniquesMeasured) {
  Metrics metrics(Clock::System());
  metrics.BeginRun("r", 1, {}, true);
  metrics.ObserveTechniques("r", {{"gradient_noise_scale_sequences", 37.5},
                                  {"adapter_loss_nats/french", 2.5},
                                  {"adapter_loss_nats/c-3", 3},
                                  {"another", 1}});
  metrics.ObserveTechniques("another", {{"gradient_noise_scale_sequences", 1}});
  const std::string text = metrics.Text();
  for (const char* line : {"weft_train_gradient_noise_scale_sequences{run=\"r\"} 37.5",
                           "weft_train_adapter_loss_nats{adapter=\"french\",run=\"r\"} 2.5",
                           "weft_train_adapter_loss_nats{adapter=\"c-3\",run=\"r\"} 3"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(Metrics, SumUpWhatRanksSentAndWaitedFor) {
  Metrics metrics(Clock::System());
  metrics.BeginRun("r", 1, {}, true);
  const CollectiveUse use{.axis = "tensor",
                          .collective = "all-reduce",
                          .calls = 3,
                          .bytes = 400,
                          .sent_bytes = 200,
                          .seconds = 0.5,
                          .exposed_seconds = 0.125};
  const TierUse tiers{
      .device_bytes = 100, .host_bytes = 50, .file_bytes = 4096, .stall_seconds = 0.25};
  for (int step = 0; step < 2; ++step) metrics.ObserveUse("r", 1, {use}, tiers);
  const std::string text = metrics.Text();
  for (const char* line :
       {"weft_train_communication_sent_bytes_total{axis=\"tensor\",collective=\"all-reduce\","
        "rank=\"1\",run=\"r\"} 400",
        "weft_train_communication_operations_total{axis=\"tensor\",collective=\"all-reduce\","
        "rank=\"1\",run=\"r\"} 6",
        "weft_train_communication_seconds_total{axis=\"tensor\",collective=\"all-reduce\","
        "rank=\"1\",run=\"r\",visibility=\"exposed\"} 0.25",
        "weft_train_communication_seconds_total{axis=\"tensor\",collective=\"all-reduce\","
        "rank=\"1\",run=\"r\",visibility=\"hidden\"} 0.75",
        "weft_train_memory_tier_bytes{rank=\"1\",run=\"r\",tier=\"host\"} 50",
        "weft_train_memory_tier_bytes{rank=\"1\",run=\"r\",tier=\"file\"} 4096",
        "weft_train_offload_stall_seconds_total{rank=\"1\",run=\"r\"} 0.5"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(Metrics, TellTheAccuracyOfAClassificationAlone) {
  Metrics metrics(Clock::System());
  metrics.BeginRun("r", 1, {}, true);
  v1::Progress progress;
  progress.set_step(1);
  metrics.SetProgress("r", progress);
  EXPECT_THAT(metrics.Text(), ::testing::Not(HasSubstr("weft_train_accuracy_ratio{")));
  progress.set_accuracy(0.75);
  progress.set_validation_accuracy(0.5);
  metrics.SetProgress("r", progress);
  const std::string text = metrics.Text();
  EXPECT_THAT(text, HasSubstr("weft_train_accuracy_ratio{run=\"r\"} 0.75"));
  EXPECT_THAT(text, HasSubstr("weft_train_eval_accuracy_ratio{dataset=\"validation\",run=\"r\"} "
                              "0.5"));
}

}  // namespace
}  // namespace weft::daemon
