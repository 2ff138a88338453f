// A mixture of experts that trains on padded rows, against PyTorch, which runs every document by
// itself and has no padding: make_fixtures.py recorded its weights. Ranks cannot show such a fault
// to each other, for all of them would count the padding.

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/env.h"
#include "common/formats/huggingface.h"
#include "common/json.h"
#include "worker/engine/data/loader.h"
#include "worker/engine/data/testing.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/testing/mesh_run.h"

namespace weft::engine {
namespace {

constexpr int64_t kSteps = 12, kLength = 20;
/// Tolerance of a parameter after twelve steps in f32; parity_test.cc has it after twenty.
constexpr double kTolerance = 1e-4;

std::string Folder(const std::string& name) {
  return WEFT_SOURCE_DIR "/tests/parity/testdata/mixtral/" + name;
}

std::shared_ptr<TokenLoader> LoadDocuments(Batching batching) {
  const auto text = ReadFile(Env::Posix(), Folder("documents/documents.json"));
  WEFT_CHECK(text.ok(), text.status().message());
  const auto documents = ParseJson(*text)->get<std::vector<std::vector<int32_t>>>();
  LoaderOptions options;
  options.length = kLength;
  options.shuffle = false;
  options.batching = batching;
  options.mask_documents = true;
  options.padding_token = 66;
  auto loader = TokenLoader::Create(MakeSpan(documents), options);
  WEFT_CHECK(loader.ok(), loader.status().message());
  return *std::move(loader);
}

/// The same sequences in every step.
class RecordedDocuments : public BatchSource {
 public:
  explicit RecordedDocuments(std::shared_ptr<TokenLoader> loader) : loader_(std::move(loader)) {}
  int64_t Sequences() const override { return loader_->Sequences(); }
  Result<Batch> Get(int64_t, int64_t first_sequence, int64_t count) override {
    return loader_->Get(0, first_sequence, count);
  }

 private:
  std::shared_ptr<TokenLoader> loader_;
};

/// How the documents are spread over rows, micro-batches and ranks.
struct Layout {
  std::string name;
  Batching batching = Batching::kPadFixed;
  int64_t micro_batches = 1;  ///< Of a step on one data-parallel rank.
  Mesh mesh = {};
  bool sequence_parallel = false;
  int64_t zero_stage = 0;
  std::string policy = "keep";
};

/// As make_fixtures.py trains.
MeshCase CaseOf(const Layout& layout) {
  MeshCase c;
  auto model = ReadModelConfig(Env::Posix(), Folder("start"), ModelSpec());
  WEFT_CHECK(model.ok(), model.status().message());
  const std::shared_ptr<TokenLoader> loader = LoadDocuments(layout.batching);
  c.job = TinyJob(loader->Sequences());
  c.job.model = *model;
  c.job.train.precision = "fp32";
  c.job.train.steps = kSteps;
  c.job.train.sequence_length = kLength;
  c.job.train.gradient_clip_norm = 1.0;
  c.job.train.eval_sequences = 1;
  c.job.schedule.kind = "constant";
  c.job.optimizer.learning_rate = 1e-3;
  c.job.optimizer.beta2 = 0.95;
  c.job.optimizer.epsilon = 1e-6;
  c.job.optimizer.weight_decay = 0.1;
  const int64_t parts = layout.micro_batches * layout.mesh.data * layout.mesh.expert;
  c.plan = TinyPlan("fp32", c.job.train.global_batch / parts, layout.micro_batches);
  c.plan.mesh = layout.mesh;
  c.plan.sequence_parallel = layout.sequence_parallel;
  c.plan.zero_stage = layout.zero_stage;
  c.plan.bucket_bytes = 4000;
  if (layout.mesh.pipeline > 1) c.plan.stage_blocks = {1, 1};
  c.plan.block_memory_policy.assign(static_cast<size_t>(c.job.model.layers), layout.policy);
  c.tokens = [loader] { return std::make_unique<RecordedDocuments>(loader); };
  c.start = Folder("start");
  return c;
}

/// The recorded weights, by the names that ranks save theirs under.
std::map<std::string, std::vector<float>> Weights(const ModelSpec& model, const std::string& name) {
  TinyRun run(model, {&kFp32Precision, false, {}});
  const Status status = ImportWeights(Env::Posix(), Folder(name), *run.model);
  WEFT_CHECK(status.ok(), status.message());
  SavedState state;
  state.Add(run.model->parameters().NamedValues());
  return state.tensors;
}

double RelativeError(const std::vector<float>& got, const std::vector<float>& expected) {
  double difference = 0, norm = 0;
  WEFT_CHECK(got.size() == expected.size(), "the same shape");
  for (size_t i = 0; i < got.size(); ++i) {
    difference += std::pow(static_cast<double>(got[i]) - expected[i], 2);
    norm += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(difference / norm);
}

class DocumentsParityTest : public ::testing::TestWithParam<Layout> {};

TEST_P(DocumentsParityTest, TrainingEndsAtTheWeightsOfDocumentsWithoutPadding) {
  const MeshCase c = CaseOf(GetParam());
  SavedState trained;
  for (const MeshOutcome& rank : TrainOnMesh(c)) {
    EXPECT_EQ(rank.reports.front().targets, 51);
    EXPECT_GT(rank.reports.front().padding_tokens, 0);
    trained.Add(rank.state);
  }
  const bool whole = c.plan.micro_batch == c.job.train.global_batch;
  const auto start = Weights(c.job.model, "start");
  const auto expected = Weights(c.job.model, whole ? "documents/whole" : "documents/halves");
  const auto other = Weights(c.job.model, whole ? "documents/halves" : "documents/whole");
  for (const auto& [name, values] : expected) {
    ASSERT_TRUE(trained.tensors.contains(name)) << name;
    EXPECT_LT(RelativeError(trained.tensors.at(name), values), kTolerance) << name;
    EXPECT_GT(RelativeError(start.at(name), values), 10 * kTolerance) << name;
    if (name.find(".gate.") == std::string::npos) continue;
    EXPECT_GT(RelativeError(other.at(name), values), 10 * kTolerance)
        << "the balancing loss is of a micro-batch";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, DocumentsParityTest,
    ::testing::Values(
        Layout{.name = "pad_fixed"},
        Layout{.name = "pad_dynamic", .batching = Batching::kPadDynamic},
        Layout{.name = "best_fit", .batching = Batching::kBestFit},
        Layout{.name = "recomputed", .policy = "recompute"},
        Layout{.name = "micro_batches", .micro_batches = 2},
        Layout{.name = "micro_batches_of_their_length",
               .batching = Batching::kPadDynamic,
               .micro_batches = 2},
        Layout{.name = "data_parallel", .mesh = {.data = 2}},
        Layout{.name = "expert_parallel", .mesh = {.expert = 2}},
        Layout{.name = "expert_parallel_of_their_length",
               .batching = Batching::kPadDynamic,
               .mesh = {.expert = 2}},
        Layout{.name = "sharded_expert_parallel", .mesh = {.expert = 2}, .zero_stage = 3},
        Layout{.name = "tensor_parallel", .mesh = {.tensor = 2}},
        Layout{.name = "sequence_parallel", .mesh = {.tensor = 2}, .sequence_parallel = true},
        Layout{.name = "sequence_parallel_best_fit",
               .batching = Batching::kBestFit,
               .mesh = {.tensor = 2},
               .sequence_parallel = true},
        Layout{.name = "tensor_and_expert_parallel", .mesh = {.tensor = 2, .expert = 2}},
        Layout{.name = "pipeline", .micro_batches = 2, .mesh = {.pipeline = 2}}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace weft::engine
