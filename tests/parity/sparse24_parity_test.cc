// 2:4 sparse training against PyTorch in float64, as make_sparse24_fixtures.py recorded it: the
// loss of each of 20 steps, flip rates, and the matrices of the last MLP at their end.
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/env.h"
#include "common/formats/huggingface.h"
#include "common/json.h"
#include "tests/parity/recorded.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/techniques/sparse24/sparse24_cost.h"
#include "worker/engine/testing/tiny_run.h"

namespace weft::engine {
namespace {

/// The model that training starts with.
struct Imported : TinyRun {
  Imported(const std::string& family, const ModelOptions& options)
      : TinyRun(FileSpec(family), options) {
    const Status status = ImportWeights(Env::Posix(), Folder(family) + "/start", *model);
    WEFT_CHECK(status.ok(), status.message());
    WEFT_CHECK(model->Pack(context).ok(), "pack");
  }
};

JobSpec JobOf(const std::string& family, const std::string& method, const Json& recorded) {
  JobSpec job = RecordedJob(FileSpec(family));
  job.train.sparsity = {.method = method,
                        .decay = recorded["decay"].get<double>(),
                        .mask_interval = recorded["mask_interval"].get<int64_t>(),
                        .dense_share = recorded["dense_share"].get<double>(),
                        .gradient_estimate = "exact"};
  return job;
}

/// Rows and columns of the file in the order of the engine.
std::vector<float> InEngineOrder(const HuggingFaceTensor& tensor, const std::vector<float>& file) {
  if (!tensor.transposed) return file;
  const int64_t rows = tensor.shape[0], columns = tensor.shape[1];
  std::vector<float> turned(file.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      turned[static_cast<size_t>(r * columns + c)] = file[static_cast<size_t>(c * rows + r)];
    }
  }
  return turned;
}

// Twenty times what an f32 loses of a loss of 4.
constexpr double kLossTolerance = 5e-6;

/// Steps `run` as a job says. Losses are those of PyTorch, and so are flip rates of the searches.
void ExpectStepsOf(const JobSpec& job, const std::string& family, const Json& recorded,
                   Imported& run, const Plan& plan) {
  RecordedTokens tokens(RecordedBatch(family));
  auto trainer = Trainer::New(
      job, plan, {.context = &run.context, .model = run.model.get(), .train = &tokens});
  ASSERT_TRUE(trainer.ok()) << trainer.status().ToString();
  std::vector<double> flip_rates;
  for (size_t step = 0; step < static_cast<size_t>(job.train.steps); ++step) {
    auto report = (*trainer)->Step();
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_NEAR(report->loss, recorded["losses"][step].get<double>(), kLossTolerance) << step;
    const auto flips = report->technique_metrics.find(std::string(kFlipRateMetric));
    if (flips != report->technique_metrics.end()) flip_rates.push_back(flips->second);
  }
  if (job.train.sparsity.method == "s_ste") return;
  ASSERT_EQ(flip_rates.size(), recorded["flip_rates"].size());
  for (size_t i = 0; i < flip_rates.size(); ++i) {
    EXPECT_NEAR(flip_rates[i], recorded["flip_rates"][i].get<double>(), 1e-9) << i;
  }
}

class Sparse24Parity : public ::testing::TestWithParam<std::string> {};

TEST_P(Sparse24Parity, TwentyStepsHaveTheLossesOfPyTorchAndEndAtItsWeights) {
  const std::string& family = GetParam();
  const std::string folder = Folder(family) + "/sparse24";
  const auto text = ReadFile(Env::Posix(), folder + "/recorded.json");
  ASSERT_TRUE(text.ok());
  const Json all = *ParseJson(*text);
  for (const std::string method : {"masked_decay", "sr_ste", "s_ste"}) {
    SCOPED_TRACE(method);
    const JobSpec job = JobOf(family, method, all[method]);
    const Plan plan = RecordedPlan();
    Imported run(family, ModelOptionsOf(plan, job.train));
    const Imported start(family, {&kFp32Precision, true, {}});
    ASSERT_NO_FATAL_FAILURE(ExpectStepsOf(job, family, all[method], run, plan));
    int64_t compared = 0;
    const std::string last = ".1.mlp.";
    for (const HuggingFaceTensor& tensor : HuggingFaceTensors(job.model)) {
      if (tensor.name.find(last) == std::string::npos || tensor.shape.size() != 2) continue;
      std::string recorded = method;
      recorded += "/" + tensor.name;
      const std::vector<float> end =
          InEngineOrder(tensor, ReadTensorOf<float>(folder + "/trained.safetensors", recorded));
      const auto index = run.model->parameters().Find(tensor.parameter);
      ASSERT_TRUE(index.ok()) << tensor.parameter;
      const auto error = [&](const Imported& of) {
        const TensorView values = of.model->parameters().value(*index);
        EXPECT_EQ(values.shape.Elements(), static_cast<int64_t>(end.size()));
        return RelativeError(values.As<float>(), end.data(), end.size());
      };
      EXPECT_LT(error(run), 1e-4) << tensor.name;
      EXPECT_GT(error(start), 1e-3) << tensor.name;
      ++compared;
    }
    EXPECT_EQ(compared, family == "gpt2" ? 2 : 3);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Sparse24Parity, ::testing::Values("gpt2", "llama"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace weft::engine
