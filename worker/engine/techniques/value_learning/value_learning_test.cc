// Against the two networks by themselves, and steps against those of PyTorch in
// tests/parity/value_parity_test.cc.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env.h"
#include "common/formats/added_network.h"
#include "common/formats/huggingface.h"
#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "worker/engine/comm/rank_threads.h"
#include "worker/engine/models/added_network.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/tensor/transfer.h"
#include "worker/engine/testing/product_kind.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

const std::string kBase = WEFT_SOURCE_DIR "/tests/parity/testdata/gpt2/start";

/// A llama that learns what to add to the gpt2 of kBase.
JobSpec ValueJob(double penalty = 0) {
  JobSpec job = TinyJob(4);
  job.model.family = "llama";
  job.model.kv_heads = 2;
  job.model.vocab_size = 67;
  job.model.untied_classifier = true;
  job.train.value_learning.base.import_path = kBase;
  job.train.value_learning.logit_penalty = penalty;
  job.optimizer.learning_rate = 1e-2;
  return job;
}

/// The same in each step.
class SameTokens : public RandomTokens {
 public:
  using RandomTokens::RandomTokens;
  Result<Batch> Get(int64_t, int64_t first_sequence, int64_t count) override {
    return RandomTokens::Get(0, first_sequence, count);
  }
};

/// The network of a folder alone, as others add its logits.
struct Base {
  Allocator allocator;
  Context context;
  std::unique_ptr<LanguageModel> model;

  Base(const std::string& folder, const std::string& precision) {
    context.allocator = &allocator;
    auto loaded = LoadAddedNetwork(Env::Posix(), context, folder, PrecisionOf(precision));
    WEFT_CHECK(loaded.ok(), loaded.status().message());
    model = *std::move(loaded);
  }
};

struct ValueRun : Base, TinyRun {
  SameTokens tokens;
  std::unique_ptr<Trainer> trainer;

  explicit ValueRun(const JobSpec& job, const Plan& plan = TinyPlan("fp32"))
      : Base(job.train.value_learning.base.import_path, plan.precision),
        TinyRun(job.model, OptionsOf(job, plan, Base::model.get())),
        tokens(job.model.vocab_size, job.model.context) {
    auto made = Trainer::New(job, plan,
                             {.context = &(TinyRun::context),
                              .model = TinyRun::model.get(),
                              .train = &tokens,
                              .validation = &tokens});
    WEFT_CHECK(made.ok(), made.status().message());
    trainer = *std::move(made);
  }

  StepReport Step() {
    auto report = trainer->Step();
    WEFT_CHECK(report.ok(), report.status().message());
    return *report;
  }
  std::vector<float> BaseValues() const { return AllValues(Base::model->parameters()); }

  static std::vector<float> AllValues(const ParameterSet& parameters) {
    std::vector<float> all;
    for (const std::vector<float>& values : ValuesOf(parameters)) {
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

 private:
  static ModelOptions OptionsOf(const JobSpec& job, const Plan& plan, const LogitsSource* base) {
    ModelOptions options = ModelOptionsOf(plan, job.train);
    options.logits_source = base;
    return options;
  }
};

class ValueLearningTest : public ::testing::TestWithParam<const char*> {};

// A classifier of zeros adds nothing, to the bit.
TEST_P(ValueLearningTest, StartsWithTheLossOfTheOtherNetwork) {
  const JobSpec job = ValueJob();
  ValueRun run(job, TinyPlan(GetParam()));
  auto spec = ReadModelConfig(Env::Posix(), kBase, ModelSpec());
  ASSERT_TRUE(spec.ok());
  ModelOptions options;
  options.precision = &PrecisionOf(GetParam());
  TinyRun alone(*spec, options);
  ASSERT_TRUE(ImportWeights(Env::Posix(), kBase, *alone.model).ok());
  ASSERT_TRUE(alone.model->Pack(alone.context).ok());
  const Batch batch = *run.tokens.Get(0, 0, 4);
  const double loss = alone.Loss(batch);
  EXPECT_EQ(run.Loss(batch), loss);
  EXPECT_EQ(run.Step().loss, loss / static_cast<double>(batch.target_count));
}

TEST_P(ValueLearningTest, TrainsItsOwnNetworkAlone) {
  ValueRun run(ValueJob(0.1), TinyPlan(GetParam()));
  const std::vector<float> base = run.BaseValues(), own = run.Parameters();
  const double first = run.Step().loss;
  // All but the classifier have no gradient in the first step, in which it is zero.
  StepReport report;
  for (int i = 0; i < 20; ++i) report = run.Step();
  EXPECT_LT(report.loss, first);
  EXPECT_EQ(run.BaseValues(), base);
  const std::vector<float> after = run.Parameters();
  size_t same = 0;
  for (size_t i = 0; i < own.size(); ++i) same += own[i] == after[i] ? 1 : 0;
  EXPECT_LT(same, own.size() / 10);
}

INSTANTIATE_TEST_SUITE_P(Precisions, ValueLearningTest,
                         ::testing::Values("fp32", "bf16", "fp16", "bf16_pure"));

/// A folder of a network of this shape.
std::string FolderOf(const ModelSpec& spec, const std::string& name) {
  TinyRun run(spec, {});
  std::string folder = ::testing::TempDir() + "/" + name;
  const Status status = ExportWeights(Env::Posix(), folder, *run.model, {});
  WEFT_CHECK(status.ok(), status.message());
  return folder;
}

/// The loss of a batch from the logits of the two networks by themselves.
double LossOfSums(ValueRun& run, const Batch& batch) {
  auto rows = TokenBatch::New(run.Base::context, batch, 0);
  WEFT_CHECK(rows.ok(), rows.status().message());
  auto of_base = run.Base::model->Logits(run.Base::context, *rows);
  WEFT_CHECK(of_base.ok(), of_base.status().message());
  const std::vector<float> own = run.Logits(batch);
  double expected = 0;
  for (int64_t r = 0; r < rows->count; ++r) {
    const std::vector<float> base = ValuesOf({of_base->Rows(r, 1).view().data, DType::kF32, {67}});
    double sum = 0;
    const auto logit = [&](int64_t c) {
      return static_cast<double>(base[static_cast<size_t>(c)]) +
             own[static_cast<size_t>(r * 67 + c)];
    };
    for (int64_t c = 0; c < 67; ++c) sum += std::exp(logit(c));
    expected += std::log(sum) - logit(batch.targets[static_cast<size_t>(r)]);
  }
  return expected;
}

TEST(ValueLearning, HasTheLogitsOfBothInEvaluationToo) {
  ValueRun run(ValueJob());
  for (int i = 0; i < 3; ++i) run.Step();
  const Batch batch = *run.tokens.Get(9, 0, 2);
  EXPECT_NEAR(run.Loss(batch), LossOfSums(run, batch), 1e-4);
}

// What it has learned counts on another network of the vocabulary as on its own.
TEST(ValueLearning, IsAddedToAnotherNetwork) {
  ModelSpec larger = TinyModel();
  larger.family = "llama";
  larger.layers = 3;
  larger.width = 48;
  larger.experts = 4;
  larger.vocab_size = 67;
  JobSpec job = ValueJob();
  ValueRun own(job);
  for (int i = 0; i < 20; ++i) own.Step();
  job.train.value_learning.base.import_path = FolderOf(larger, "value_other_base");
  ValueRun other(job);
  const Batch batch = *own.tokens.Get(0, 0, 4);
  const double without = other.Loss(batch);
  const ParameterSet& learned = own.TinyRun::model->parameters();
  for (int64_t i = 0; i < learned.size(); ++i) {
    const TensorView from = learned.value(i), to = other.TinyRun::model->parameters().value(i);
    std::copy_n(from.As<float>(), from.shape.Elements(), to.As<float>());
  }
  ASSERT_TRUE(other.TinyRun::model->Pack(other.TinyRun::context).ok());
  EXPECT_NEAR(other.Loss(batch), LossOfSums(other, batch), 1e-4);
  EXPECT_LT(other.Loss(batch), 0.9 * without);
}

TEST(ValueLearning, ReportsThePenaltyWhereThereIsOne) {
  ValueRun penalized(ValueJob(100)), plain(ValueJob());
  StepReport with, without;
  for (int i = 0; i < 10; ++i) {
    with = penalized.Step();
    without = plain.Step();
  }
  EXPECT_GT(with.technique_metrics.at("value_logit_penalty_nats"), 0);
  EXPECT_EQ(without.technique_metrics.count("value_logit_penalty_nats"), 0);
  // The logits that are penalised stay smaller.
  const Batch batch = *plain.tokens.Get(0, 0, 4);
  const auto squares = [&](ValueRun& run) {
    double sum = 0;
    for (const float logit : run.Logits(batch)) sum += logit * logit;
    return sum;
  };
  EXPECT_LT(squares(penalized), 0.5 * squares(plain));
}

TEST(ValueLearning, MicroBatchesAddUpToTheWholeBatch) {
  ValueRun whole(ValueJob(0.5), TinyPlan("fp32", 4, 1)),
      parts(ValueJob(0.5), TinyPlan("fp32", 1, 4));
  for (int i = 0; i < 5; ++i) {
    const StepReport a = whole.Step(), b = parts.Step();
    EXPECT_NEAR(a.loss, b.loss, 1e-5);
    EXPECT_NEAR(a.technique_metrics.at("value_logit_penalty_nats"),
                b.technique_metrics.at("value_logit_penalty_nats"), 1e-6);
  }
}

// One of two ranks has 33 of the 67 tokens of a vocabulary.
TEST(ValueLearning, TensorParallelRanksAddTheLogitsOfTheirPartOfTheVocabulary) {
  const int64_t columns = PaddedVocabulary(67);
  const Batch batch = *RandomTokens(67, 16).Get(0, 0, 2);
  const auto added = [&](Context& context, const LanguageModel& network) {
    auto rows = TokenBatch::New(context, batch, 0);
    WEFT_CHECK(rows.ok(), rows.status().message());
    const Tensor hidden = *network.HiddenStates(context, *rows);
    const Tensor logits =
        *Tensor::New(context, Component::kWorkspace, DType::kF32, {rows->count, columns});
    WEFT_CHECK(Clear(context.stream, logits.view()).ok(), "clear");
    WEFT_CHECK(network.AddLogits(context, hidden, logits).ok(), "add");
    return ValuesOf(logits.view());
  };
  Base whole(kBase, "fp32");
  const std::vector<float> of_whole = added(whole.context, *whole.model);
  RunRanks(2, std::chrono::seconds(20), [&](Collective& world) {
    const TensorParallel ranks(&world);
    Allocator allocator;
    Context context;
    context.allocator = &allocator;
    const auto part = LoadAddedNetwork(Env::Posix(), context, kBase, PrecisionOf("fp32"), &ranks);
    ASSERT_TRUE(part.ok()) << part.status().message();
    const std::vector<float> of_part = added(context, **part);
    const Shard::Range own = ranks.Part(67);
    ASSERT_EQ(of_part.size(), of_whole.size());
    for (int64_t i = 0; i < std::ssize(of_part); ++i) {
      if (i % columns >= own.size()) continue;
      EXPECT_NEAR(of_part[static_cast<size_t>(i)], of_whole[static_cast<size_t>(i + own.begin)],
                  1e-5);
    }
    const auto rows = TokenBatch::New(context, batch, 0);
    EXPECT_FALSE((*part)->Logits(context, *rows, nullptr).ok()) << "they are those of a part";
  });
}

TEST(ValueLearning, WantsTheOtherNetworkForTraining) {
  const JobSpec job = ValueJob();
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  ModelOptions options = ModelOptionsOf(TinyPlan("fp32"), job.train);
  EXPECT_THAT(NewModel(context, job.model, options).status().message(),
              HasSubstr("which is not loaded"));
  options.with_gradients = false;  // an export needs its own weights alone
  EXPECT_TRUE(NewModel(context, job.model, options).ok());
}

void ExpectPredictedMemory(const std::string& kind, const std::string& precision) {
  SCOPED_TRACE(kind + " in " + precision);
  const bool larger = kind.starts_with("larger");
  JobSpec job = ValueJob(kind == "penalty" ? 0.5 : 0);
  job.model.width = 128;
  job.model.heads = job.model.kv_heads = 4;
  job.model.vocab_size = kind == "vocabulary" || kind == "penalty" ? 6000 : 600;
  job.model.context = 128;
  ModelSpec base = job.model;
  base.layers = 1;
  if (larger) base.width = 640;
  if (kind == "larger experts") base.experts = 4;
  if (kind != "larger llama" && kind != "larger experts") {
    base.family = "gpt2";
    base.kv_heads = 0;
    base.untied_classifier = false;
  }
  job.train.value_learning.base.import_path = FolderOf(base, "value_base_of_memory");
  ASSERT_EQ(ResolveAddedNetwork(Env::Posix(), job).ToString(), OkStatus().ToString());
  const Plan plan = TinyPlan(precision, 4);
  ValueRun run(job, plan);
  const int64_t of_base = TotalBytes(run.Base::allocator.Peaks());
  ASSERT_GT(of_base, 0);
  run.Step();
  MemoryInputs inputs = MemoryInputsOf(job, plan, {ProductsOf(PrecisionOf(precision).products)});
  const MemoryBreakdown predicted = PredictMemory(inputs);
  inputs.added_network.reset();
  const MemoryBreakdown without = PredictMemory(inputs);
  const MemoryBreakdown measured = run.Step().peak_memory;
  const auto near = [](int64_t promised, int64_t taken) {
    return static_cast<double>(promised) / static_cast<double>(taken);
  };
  EXPECT_NEAR(near(predicted.parameters_bytes - without.parameters_bytes, of_base), 1, 0.01);
  EXPECT_NEAR(near(predicted.activations_bytes, measured.activations_bytes), 1, 0.01);
  // The other network runs while there are no activations yet: its workspace counts where it is
  // more than these and the model's own together.
  const int64_t workspace = predicted.workspace_bytes + (larger ? predicted.activations_bytes : 0);
  // With experts the prediction is a bound.
  EXPECT_NEAR(near(workspace, measured.workspace_bytes), 1, base.experts > 0 ? 0.08 : 0.01);
}

TEST(ValueLearning, TakesTheMemoryThatIsPredicted) {
  for (const char* precision : {"fp32", "bf16"}) {
    for (const char* kind :
         {"smaller", "vocabulary", "penalty", "larger", "larger llama", "larger experts"}) {
      ExpectPredictedMemory(kind, precision);
    }
  }
}

}  // namespace
}  // namespace weft::engine
