// Direct preference optimisation against PyTorch in float64, as make_preference_fixtures.py
// recorded it: loss and reward margin of each of 20 steps, and the weights at their end.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/env.h"
#include "common/json.h"
#include "tests/parity/recorded.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

constexpr int64_t kPerStep = 4;  // sequences, of two pairs

Json Recorded(const std::string& family) {
  auto text = ReadFile(Env::Posix(), Folder(family) + "/preference/pairs.json", 1 << 20);
  WEFT_CHECK(text.ok(), text.status().message());
  auto json = ParseJson(*text);
  WEFT_CHECK(json.ok(), json.status().message());
  return *json;
}

/// The recorded pairs in turn, rows padded to the longest asked for.
class RecordedPairs : public BatchSource {
 public:
  explicit RecordedPairs(const Json& pairs) {
    for (const Json& pair : pairs) {
      for (const char* answer : {"chosen", "rejected"}) {
        Row row{.tokens = pair["prompt"], .prompt = pair["prompt"].size()};
        for (const Json& token : pair[answer]) row.tokens.push_back(token);
        rows_.push_back(std::move(row));
      }
    }
  }

  int64_t Sequences() const override { return std::ssize(rows_); }
  Result<Batch> Get(int64_t step, int64_t first_sequence, int64_t count) override {
    Batch batch;
    batch.sequences = batch.target_count = count;
    for (int64_t s = first_sequence; s < first_sequence + count; ++s) {
      const int64_t index = (step * kPerStep + s) % Sequences();
      batch.sequence_indices.push_back(static_cast<int32_t>(index));
      const auto size = static_cast<int64_t>(rows_[static_cast<size_t>(index)].tokens.size());
      batch.length = std::max(batch.length, size);
    }
    for (const int32_t index : batch.sequence_indices) {
      const Row& row = rows_[static_cast<size_t>(index)];
      const auto begin = static_cast<int32_t>(batch.tokens.size());
      const size_t size = row.tokens.size();
      batch.lengths.push_back(static_cast<int32_t>(size));
      batch.sequence_starts.push_back(begin);
      if (static_cast<int64_t>(size) < batch.length) {
        batch.sequence_starts.push_back(begin + static_cast<int32_t>(size));
      }
      for (size_t t = 0; t < static_cast<size_t>(batch.length); ++t) {
        batch.tokens.push_back(t < size ? row.tokens[t] : 0);
        batch.positions.push_back(static_cast<int32_t>(t < size ? t : t - size));
        const bool answers = t + 1 >= row.prompt && t + 1 < size;
        batch.targets.push_back(answers ? row.tokens[t + 1] : kernels::kIgnoreTarget);
      }
    }
    batch.sequence_starts.push_back(static_cast<int32_t>(batch.tokens.size()));
    return batch;
  }

 private:
  struct Row {
    std::vector<int32_t> tokens;
    size_t prompt = 0;  ///< Tokens of it.
  };
  std::vector<Row> rows_;
};

struct Imported : TinyRun {
  Imported(const std::string& family, const std::string& name)
      : TinyRun(FileSpec(family), {&kFp32Precision, true, {}}) {
    const Status status = ImportWeights(Env::Posix(), Folder(family) + "/" + name, *model);
    WEFT_CHECK(status.ok(), status.message());
    WEFT_CHECK(model->Pack(context).ok(), "pack");
  }
};

class PreferenceParity : public ::testing::TestWithParam<const char*> {};

TEST_P(PreferenceParity, TwentyStepsHaveTheLossesOfPyTorchAndEndAtItsWeights) {
  const Json recorded = Recorded(GetParam());
  Imported run(GetParam(), "start");
  JobSpec job = RecordedJob(run.model->spec());
  job.train.global_batch = kPerStep;
  job.train.preference = {
      .method = "dpo", .beta = recorded["beta"], .label_smoothing = recorded["label_smoothing"]};
  Plan plan = RecordedPlan();
  plan.micro_batch = 1;
  plan.accumulation_steps = kPerStep;
  RecordedPairs pairs(recorded["pairs"]);
  auto trainer =
      Trainer::New(job, plan, {.context = &run.context, .model = run.model.get(), .train = &pairs});
  ASSERT_TRUE(trainer.ok()) << trainer.status().ToString();
  for (size_t step = 0; step < 20; ++step) {
    auto report = (*trainer)->Step();
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_NEAR(report->loss, recorded["losses"][step].get<double>(), 1e-4) << step;
    EXPECT_NEAR(report->technique_metrics.at("preference_reward_margin_nats"),
                recorded["margins"][step].get<double>(), 5e-4)
        << step;
  }
  const Imported start(GetParam(), "start"), expected(GetParam(), "preference/trained");
  const ParameterSet& parameters = run.model->parameters();
  for (int64_t p = 0; p < parameters.size(); ++p) {
    const std::string& name = parameters[p].name;
    const TensorView end = expected.model->parameters().value(p);
    EXPECT_LT(RelativeError(parameters.value(p), end), 1e-4) << name;
    EXPECT_GT(RelativeError(start.model->parameters().value(p), end), 1e-3) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, PreferenceParity, ::testing::Values("gpt2", "llama"));

}  // namespace
}  // namespace weft::engine
