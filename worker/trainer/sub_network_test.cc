#include "worker/trainer/sub_network.h"

#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/technique_cost.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"
#include "worker/trainer/trained_weights.h"

namespace weft::trainer {
namespace {

using namespace engine;  // NOLINT(google-build-using-namespace)
using ::testing::HasSubstr;

TEST(SubNetwork, OfACheckpointHasTheLossThatEvaluationMeasures) {
  JobSpec job = TinyJob(4);
  job.model.low_rank_core.rank = 6;
  job.optimizer.learning_rate = 1e-2;
  RandomTokens tokens(job.model.vocab_size, job.model.context);
  TinyTraining run(job, TinyPlan("fp32"), tokens);
  for (int i = 0; i < 5; ++i) run.Step();
  const EvaluationReport report = *run.trainer->Evaluate();

  const std::string folder = ::testing::TempDir() + "/sub_network";
  std::filesystem::create_directories(folder);
  CheckpointManifest manifest;
  manifest.job = job;
  manifest.updates = manifest.step = 5;
  auto file = WriteTensorFile(Env::Posix(), folder, 0, 1, run.trainer->StateTensors());
  ASSERT_TRUE(file.ok());
  manifest.files = {*file};

  TinyRun whole(job.model, {});
  SelectSubNetwork(*whole.model);
  ASSERT_TRUE(LoadTrainedWeights(Env::Posix(), folder, manifest, whole.model->parameters()).ok());
  JobSpec own = job;
  own.model = *SubNetworkOf(job);
  EXPECT_EQ(own.model.low_rank_core.rank, 0);
  TinyTraining core(own, TinyPlan("fp32"), tokens);
  ASSERT_TRUE(TakeFirst(whole.model->parameters(), core.model->parameters()).ok());
  ASSERT_TRUE(core.trainer->Restored({}).ok());
  EXPECT_NEAR(core.trainer->Evaluate()->loss, report.technique_metrics.at("core_eval_loss_nats"),
              1e-6);
  std::filesystem::remove_all(folder);
}

TEST(SubNetwork, TakesTheFirstRowsAndColumnsOfEachParameter) {
  TinyRun whole(TinyModel(), {});
  ModelSpec smaller = TinyModel();
  smaller.layers = 1;
  smaller.mlp_width = 24;
  TinyRun part(smaller, {});
  ASSERT_TRUE(TakeFirst(whole.model->parameters(), part.model->parameters()).ok());
  const ParameterSet &from = whole.model->parameters(), &to = part.model->parameters();
  for (int64_t i = 0; i < to.size(); ++i) {
    const int64_t index = from.Find(to[i].name).value();
    const std::vector<float> values = ValuesOf(to.value(i)), all = ValuesOf(from.value(index));
    const int64_t columns = to[i].shape.Elements() / to[i].shape[0];
    const int64_t all_columns = from[index].shape.Elements() / from[index].shape[0];
    for (size_t e = 0; e < values.size(); ++e) {
      const int64_t row = static_cast<int64_t>(e) / columns,
                    column = static_cast<int64_t>(e) % columns;
      ASSERT_EQ(values[e], all[static_cast<size_t>(row * all_columns + column)]) << to[i].name;
    }
  }
  EXPECT_THAT(TakeFirst(part.model->parameters(), whole.model->parameters()).message(),
              HasSubstr("mlp.c_fc.weight [128, 32] is no part of [24, 32]"));
}

}  // namespace
}  // namespace weft::trainer
