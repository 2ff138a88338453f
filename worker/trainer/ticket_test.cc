#include "worker/trainer/ticket.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/testing/encoder_batches.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/saved_state.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"
#include "worker/trainer/trained_weights.h"

namespace weft::trainer {
namespace {

using namespace engine;  // NOLINT(google-build-using-namespace)

JobSpec SearchJob(const std::string& family) {
  JobSpec job = TinyJob(4);
  job.model.family = family;
  if (family == "bert") job.model.token_types = 2;
  StructuredPruningSpec& spec = job.model.structured_pruning;
  spec.method = "early_bird";
  spec.interval = 2;
  if (family != "llama") return job;
  job.model.heads = 4;
  job.model.kv_heads = 2;
  spec.head_density = 0.5;
  return job;
}

std::unique_ptr<BatchSource> TokensOf(const JobSpec& job) {
  if (job.model.family == "bert") {
    return std::make_unique<RandomMasked>(job.model.vocab_size, job.model.context, 0.25);
  }
  return std::make_unique<RandomTokens>(job.model.vocab_size, job.model.context);
}

/// Loads what was trained, and the ticket of its last mask.
Status LoadTicketOf(const std::string& folder, const CheckpointManifest& manifest, TinyRun& whole,
                    TinyRun& ticket) {
  WEFT_RETURN_IF_ERROR(
      LoadTrainedWeights(Env::Posix(), folder, manifest, whole.model->parameters()));
  WEFT_RETURN_IF_ERROR(LoadTicket(Env::Posix(), folder, manifest, *TicketOf(manifest.job.model),
                                  whole.model->parameters(), ticket.model->parameters()));
  return ticket.model->Pack(ticket.context);
}

/// A search of some steps, saved.
struct Search {
  JobSpec job;
  std::unique_ptr<BatchSource> tokens;
  TinyTraining run;
  std::string folder;
  CheckpointManifest manifest;

  Search(const JobSpec& of, int64_t steps)
      : job(of),
        tokens(TokensOf(job)),
        run(job, TinyPlan("fp32"), *tokens),
        folder(::testing::TempDir() + "/ticket") {
    for (int64_t step = 0; step < steps; ++step) run.Step();
    std::filesystem::create_directories(folder);
    manifest.job = job;
    manifest.updates = run.trainer->counters().updates;
    manifest.step = run.trainer->counters().step;
    Save(run.trainer->StateTensors());
  }
  ~Search() { std::filesystem::remove_all(folder); }

  void Save(const std::vector<NamedTensor>& state) {
    auto file = WriteTensorFile(Env::Posix(), folder, 0, 1, state);
    WEFT_CHECK(file.ok(), file.status().message());
    manifest.files = {*file};
  }

  Status Load(TinyRun& whole, TinyRun& ticket) const {
    return LoadTicketOf(folder, manifest, whole, ticket);
  }
};

/// Logits of the first weights of a search with its masks, which `state` has, as coefficients.
/// `pruned`: how many coefficients are zero.
std::vector<float> MaskedLogits(const JobSpec& job, const SavedState& state, const Batch& batch,
                                int64_t& pruned) {
  TinyRun masked(job.model, ModelOptionsOf(TinyPlan("fp32")));
  ParameterSet& parameters = masked.model->parameters();
  const StateName name = TicketOf(job.model)->masks;
  pruned = 0;
  for (const auto& [tensor, mask] : state.tensors) {
    if (!tensor.starts_with(name.prefix) || !tensor.ends_with(name.suffix)) continue;
    const std::string weight =
        tensor.substr(name.prefix.size(), tensor.size() - name.prefix.size() - name.suffix.size());
    const TensorView c = parameters.value(*parameters.Find(weight + ".coefficients"));
    for (int64_t i = 0; i < c.shape[0]; ++i) {
      const float kept = mask[static_cast<size_t>(i) / (c.shape[0] / mask.size())];
      c.As<float>()[i] = kept;
      pruned += kept == 0 ? 1 : 0;
    }
  }
  WEFT_CHECK(parameters.OnValues(masked.context, ValuesFrom::kCheckpoint).ok(), "merge");
  WEFT_CHECK(masked.model->Pack(masked.context).ok(), "pack");
  return masked.Logits(batch);
}

void ExpectNear(const std::vector<float>& logits, const std::vector<float>& expected) {
  ASSERT_EQ(logits.size(), expected.size());
  for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected[i], 1e-6);
}

TEST(TicketTest, IsTheInitialNetworkWithoutTheUnitsThatMasksLeaveOut) {
  for (const char* family : {"llama", "gpt2", "bert"}) {
    SCOPED_TRACE(family);
    Search search(SearchJob(family), 4);
    const ModelOptions options = ModelOptionsOf(TinyPlan("fp32"));
    TinyRun whole(search.job.model, options);
    const ModelSpec smaller = TicketOf(search.job.model)->model;
    TinyRun ticket(smaller, options);
    const Status loaded = search.Load(whole, ticket);
    ASSERT_TRUE(loaded.ok()) << loaded.message();
    const Batch batch = *search.tokens->Get(9, 0, 4);
    const std::vector<float> logits = ticket.Logits(batch);

    SavedState state;
    state.Add(search.run.trainer->StateTensors());
    int64_t pruned = 0;
    ExpectNear(logits, MaskedLogits(search.job, state, batch, pruned));
    EXPECT_EQ(pruned, 2 * 48 + (family == std::string("llama") ? 2 * 2 : 0));

    // It is a model as every other: it is exported, imported and trained.
    const std::string exported = search.folder + "/hf";
    const Status written = ExportWeights(Env::Posix(), exported, *ticket.model, {});
    ASSERT_TRUE(written.ok()) << written.message();
    JobSpec next = TinyJob(4);
    next.model = ModelSpec();
    next.model.import_path = next.data.tokenizer.path = exported;
    const Status resolved = ResolveImportedModel(Env::Posix(), next);
    ASSERT_TRUE(resolved.ok()) << resolved.message();
    EXPECT_EQ(next.model.mlp_width, 80);
    EXPECT_EQ(next.model.heads, 2);
    EXPECT_EQ(next.model.head_width, family == std::string("llama") ? 8 : 0);
    next.train.steps = 30;
    next.optimizer.learning_rate = 1e-2;
    CountingTokens counting(7, next.model.context);
    RandomMasked encoder(7, next.model.context, 0.25);
    BatchSource& tokens =
        family == std::string("bert") ? static_cast<BatchSource&>(encoder) : counting;
    TinyTraining training(next, TinyPlan("fp32"), tokens);
    ASSERT_TRUE(ImportWeights(Env::Posix(), exported, *training.model).ok());
    ASSERT_TRUE(training.trainer->Restored({}).ok());
    ASSERT_TRUE(training.model->Pack(training.context).ok());
    EXPECT_EQ(training.Logits(batch), logits);
    const double first = training.Step().loss;
    double last = 0;
    while (!training.trainer->finished()) last = training.Step().loss;
    EXPECT_LT(last, first - 0.5);
  }
}

// Each rank saves the masks of its blocks, and its columns of the first weights.
TEST(TicketTest, OfASearchOnAMeshHasTheUnitsOfAllRanks) {
  MeshCase mesh{SearchJob("llama"), TinyPlan("fp32", 2, 2)};
  mesh.plan.mesh.tensor = mesh.plan.mesh.pipeline = 2;
  mesh.plan.stage_blocks = {1, 1};
  const std::string folder = ::testing::TempDir() + "/mesh_ticket";
  std::filesystem::create_directories(folder);
  CheckpointManifest manifest;
  manifest.job = mesh.job;
  SavedState state;
  std::mutex mutex;
  RunRanks(static_cast<int>(mesh.ranks()), std::chrono::seconds(60), [&](Collective& world) {
    MeshRank rank(mesh, world);
    for (int64_t step = 0; step < 4; ++step) {
      ASSERT_TRUE(rank.trainer->Step().ok());
    }
    std::vector<NamedTensor> tensors = rank.trainer->StateTensors();
    std::erase_if(tensors, [](const NamedTensor& tensor) { return !tensor.saved; });
    const auto file = WriteTensorFile(Env::Posix(), folder, world.rank(), world.size(), tensors);
    ASSERT_TRUE(file.ok()) << file.status().message();
    const std::lock_guard lock(mutex);
    state.Add(tensors);
    manifest.files.push_back(*file);
    manifest.step = rank.trainer->counters().step;
    manifest.updates = rank.trainer->counters().updates;
  });
  const ModelOptions options = ModelOptionsOf(TinyPlan("fp32"));
  TinyRun whole(mesh.job.model, options), ticket(TicketOf(mesh.job.model)->model, options);
  const Status loaded = LoadTicketOf(folder, manifest, whole, ticket);
  ASSERT_TRUE(loaded.ok()) << loaded.message();
  const Batch batch = *TokensOf(mesh.job)->Get(9, 0, 4);
  int64_t pruned = 0;
  ExpectNear(ticket.Logits(batch), MaskedLogits(mesh.job, state, batch, pruned));
  EXPECT_EQ(pruned, 2 * 48 + 2 * 2);
  std::filesystem::remove_all(folder);
}

TEST(TicketTest, ASearchWithoutAMaskHasNone) {
  const Search search(SearchJob("gpt2"), 1);
  const ModelOptions options = ModelOptionsOf(TinyPlan("fp32"));
  TinyRun whole(search.job.model, options);
  TinyRun ticket(TicketOf(search.job.model)->model, options);
  EXPECT_THAT(search.Load(whole, ticket).message(),
              ::testing::HasSubstr("has chosen no units yet; hint: take a later one"));
}

// Nothing is read beyond a mask, and no other share of the units is taken.
TEST(TicketTest, MasksThatDoNotFitAreRefused) {
  const ModelOptions options = ModelOptionsOf(TinyPlan("fp32"));
  struct Tampering {
    Shape shape;
    uint8_t value;
    std::string error;
  };
  const std::vector<Tampering> tamperings = {{{7}, 1, "7 units, which do not divide"},
                                             {{128}, 1, "keep another share of"},
                                             {{2, 64}, 1, "is no mask of units"}};
  for (const auto& [shape, value, error] : tamperings) {
    SCOPED_TRACE(error);
    Search search(SearchJob("gpt2"), 4);
    const StateName name = TicketOf(search.job.model)->masks;
    std::vector<uint8_t> mask(static_cast<size_t>(shape.Elements()), value);
    std::vector<NamedTensor> state = search.run.trainer->StateTensors();
    for (NamedTensor& tensor : state) {
      if (!tensor.name.starts_with(name.prefix) || !tensor.name.ends_with(name.suffix)) continue;
      tensor = {.name = tensor.name, .view = {mask.data(), DType::kU8, shape}};
    }
    search.Save(state);
    TinyRun whole(search.job.model, options);
    TinyRun ticket(TicketOf(search.job.model)->model, options);
    EXPECT_THAT(search.Load(whole, ticket).message(), ::testing::HasSubstr(error));
  }
}

}  // namespace
}  // namespace weft::trainer
