// Inverse value learning against PyTorch in float64, as make_value_fixtures.py recorded it: loss
// and penalty of each of 20 steps, and the weights at their end.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/env.h"
#include "common/json.h"
#include "tests/parity/recorded.h"
#include "worker/engine/models/added_network.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/testing/tiny_run.h"

namespace weft::engine {
namespace {

constexpr int64_t kSequences = 3, kLength = 20;

const std::string kData = WEFT_SOURCE_DIR "/tests/parity/testdata";

/// One of the recorded sequences after the other.
class OneByOne : public BatchSource {
 public:
  int64_t Sequences() const override { return kSequences; }
  Result<Batch> Get(int64_t, int64_t first_sequence, int64_t count) override {
    Batch batch;
    batch.sequences = count;
    batch.length = kLength;
    for (int64_t i = first_sequence * kLength; i < (first_sequence + count) * kLength; ++i) {
      const auto at = static_cast<size_t>(i);
      batch.tokens.push_back(tokens_[at]);
      batch.targets.push_back(targets_[at]);
      batch.positions.push_back(static_cast<int32_t>(i % kLength));
      batch.target_count += targets_[at] >= 0 ? 1 : 0;
    }
    for (int64_t s = 0; s <= count; ++s) {
      batch.sequence_starts.push_back(static_cast<int32_t>(s * kLength));
    }
    return batch;
  }

 private:
  std::vector<int32_t> tokens_ = ReadTensor<int32_t>("llama", "tokens");
  std::vector<int32_t> targets_ = ReadTensor<int32_t>("llama", "targets");
};

/// A llama of a folder.
struct Imported : TinyRun {
  Imported(const std::string& name, const ModelOptions& options)
      : TinyRun(FileSpec("llama"), options) {
    const Status status = ImportWeights(Env::Posix(), kData + "/llama/" + name, *model);
    WEFT_CHECK(status.ok(), status.message());
    WEFT_CHECK(model->Pack(context).ok(), "pack");
  }
};

TEST(ValueParity, TwentyStepsHaveTheLossesOfPyTorchAndEndAtItsWeights) {
  const auto text = ReadFile(Env::Posix(), kData + "/llama/value/losses.json", 1 << 20);
  ASSERT_TRUE(text.ok());
  const Json recorded = *ParseJson(*text);

  JobSpec job = RecordedJob(FileSpec("llama"));
  job.train.value_learning.base.import_path = kData + "/gpt2/start";
  job.train.value_learning.logit_penalty = recorded["logit_penalty"];
  Plan plan = RecordedPlan();
  plan.micro_batch = 1;
  plan.accumulation_steps = kSequences;

  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  const auto base = LoadAddedNetwork(Env::Posix(), context,
                                     job.train.value_learning.base.import_path, kFp32Precision);
  ASSERT_TRUE(base.ok()) << base.status().ToString();
  ModelOptions options = ModelOptionsOf(plan, job.train);
  options.logits_source = base->get();
  Imported run("start", options);
  OneByOne tokens;
  auto trainer = Trainer::New(
      job, plan, {.context = &run.context, .model = run.model.get(), .train = &tokens});
  ASSERT_TRUE(trainer.ok()) << trainer.status().ToString();
  for (size_t step = 0; step < 20; ++step) {
    auto report = (*trainer)->Step();
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_NEAR(report->loss, recorded["losses"][step].get<double>(), 2e-5) << step;
    EXPECT_NEAR(report->technique_metrics.at("value_logit_penalty_nats"),
                recorded["penalties"][step].get<double>(), 1e-6)
        << step;
  }
  const Imported start("start", {}), expected("value/trained", {});
  const ParameterSet& parameters = run.model->parameters();
  for (int64_t p = 0; p < parameters.size(); ++p) {
    const std::string& name = parameters[p].name;
    const TensorView end = expected.model->parameters().value(p);
    EXPECT_LT(RelativeError(parameters.value(p), end), 1e-4) << name;
    EXPECT_GT(RelativeError(start.model->parameters().value(p), end), 1e-3) << name;
  }
}

}  // namespace
}  // namespace weft::engine
