// Adapters of linear layers outside the blocks: what is counted, that they are the network of their
// merged weights, gradients, meshes, and what is refused. Their training is compared with that of
// peft in tests/parity.
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env.h"
#include "common/model/model_shape.h"
#include "common/model/outer_layers.h"
#include "common/model/parameter_list.h"
#include "common/model/pipeline_shape.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/techniques/peft/adapters_testing.h"
#include "worker/engine/testing/encoder_batches.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/parallelism.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ModelSpec Adapted(const std::string& family, const std::vector<std::string>& targets) {
  ModelSpec model = TinyModel();
  model.family = family;
  model.peft.method = "lora";
  model.peft.rank = 3;
  model.peft.alpha = 6;
  model.peft.target_modules = targets;
  return model;
}

/// A decoder whose classifier has a matrix of its own. One of two ranks has more of its rows.
ModelSpec WithHead(const std::string& family = "llama",
                   const std::vector<std::string>& targets = {"lm_head", "q_proj"}) {
  ModelSpec model = Adapted(family, targets);
  model.untied_classifier = true;
  model.vocab_size = 51;
  return model;
}

ModelSpec WithPooler() {
  ModelSpec model = Adapted("bert", {"pooler.dense", "classifier"});
  model.head = "classification";
  model.classes = 5;
  return model;
}

ModelSpec WithPatches() {
  ModelSpec model = Adapted("vit", {"projection", "classifier"});
  model.image_size = 12;
  model.patch_size = 3;
  model.image_channels = 1;
  model.classes = 10;
  model.vocab_size = 0;
  return model;
}

std::vector<ModelSpec> Models() {
  return {WithHead(), WithHead("gpt2", {"lm_head"}), Adapted("bert", {"transform.dense", "query"}),
          WithPooler(), WithPatches()};
}

/// The same with a magnitude for each row.
std::vector<ModelSpec> DoraModels() {
  std::vector<ModelSpec> models = Models();
  for (ModelSpec& model : models) model.peft.use_dora = true;
  return models;
}

Batch BatchOf(const ModelSpec& model) {
  std::unique_ptr<BatchSource> source;
  if (model.family == "vit") {
    source = std::make_unique<NoiseImages>(model);
  } else if (HeadOf(model) == "classification") {
    source = std::make_unique<RandomLabelled>(model.vocab_size, model.context, model.classes);
  } else if (HeadOf(model) == "masked_lm") {
    source = std::make_unique<RandomMasked>(model.vocab_size, model.context, 0.3);
  } else {
    source = std::make_unique<RandomTokens>(model.vocab_size, model.context);
  }
  auto batch = source->Get(3, 0, 2);
  WEFT_CHECK(batch.ok(), batch.status().message());
  return *batch;
}

std::vector<std::string> OuterAdapters(const ModelSpec& model) {
  std::vector<std::string> weights;
  for (const ParameterInfo& parameter : ParametersOf(model)) {
    const bool outer = parameter.block < 0 && parameter.adapter == AdapterSide::kInput;
    if (outer) weights.push_back(parameter.adapter_of);
  }
  return weights;
}

TEST(OuterAdapters, AreOfTheLayersThatTargetsName) {
  EXPECT_THAT(OuterAdapters(WithHead()), ElementsAre("lm_head.weight"));
  EXPECT_THAT(OuterAdapters(WithPooler()),
              ElementsAre("bert.pooler.dense.weight", "classifier.weight"));
  EXPECT_THAT(
      OuterAdapters(WithPatches()),
      ElementsAre("vit.embeddings.patch_embeddings.projection.weight", "classifier.weight"));
  ModelSpec model = WithPooler();
  model.peft.target_modules = {"dense"};
  EXPECT_THAT(OuterAdapters(model), ElementsAre("bert.pooler.dense.weight"));
  model.peft.target_modules = {};
  model.peft.target_regex = ".*(query|classifier)";
  EXPECT_THAT(OuterAdapters(model), ElementsAre("classifier.weight"));
  model.peft.layers_to_transform = {1};
  EXPECT_THAT(OuterAdapters(model), IsEmpty());
  // As in peft, all-linear leaves the classifier out; what is trained whole has no adapter.
  EXPECT_THAT(OuterAdapters(WithHead("llama", {"all-linear"})), IsEmpty());
  model = WithPooler();
  model.peft.modules_to_save = {"classifier"};
  EXPECT_THAT(OuterAdapters(model), ElementsAre("bert.pooler.dense.weight"));
}

TEST(OuterAdapters, AreThoseThatAreCounted) {
  std::vector<ModelSpec> models = Models();
  for (ModelSpec& model : DoraModels()) models.push_back(std::move(model));
  for (const ModelSpec& model : models) {
    SCOPED_TRACE(model.family + " " + model.head + (model.peft.use_dora ? " dora" : ""));
    const std::vector<ParameterInfo> counted = ParametersOf(model);
    const TinyRun run(model, ModelOptionsOf(TinyPlan("fp32")));
    const ParameterSet& parameters = run.model->parameters();
    ASSERT_EQ(parameters.size(), std::ssize(counted));
    int64_t stored = 0, trained = 0;
    for (const ParameterInfo& info : counted) {
      const auto index = parameters.Find(info.name);
      ASSERT_TRUE(index.ok()) << info.name;
      const Parameter& parameter = parameters[*index];
      EXPECT_TRUE(static_cast<const ParameterAttributes&>(parameter) == info) << info.name;
      EXPECT_EQ(parameter.unit, info.unit) << info.name;
      EXPECT_EQ(parameter.adapter_of, info.adapter_of) << info.name;
      EXPECT_EQ(parameter.shape.Elements(), info.Elements()) << info.name;
      EXPECT_EQ(parameter.StoredElements(), info.StoredElements()) << info.name;
      EXPECT_EQ(info.frozen, info.adapter_of.empty()) << info.name;
      stored += parameter.StoredElements();
      if (parameter.trainable()) trained += parameter.StoredElements();
    }
    EXPECT_EQ(ModelShape(model).stored, stored);
    EXPECT_EQ(ModelShape(model).stored_trained, trained);
  }
}

TEST(OuterAdapters, StagesOfAPipelineHaveThoseThatAreCounted) {
  const ModelSpec model = WithHead();
  const ModelShape whole(model);
  for (int64_t stage = 0; stage < 2; ++stage) {
    ModelOptions options = ModelOptionsOf(TinyPlan("fp32"));
    options.pipeline = PipelinePart{{{stage, 1}}, stage == 0, stage == 1};
    const TinyRun run(model, options);
    int64_t trained = 0;
    bool has_outer = false;
    for (const Parameter& parameter : run.model->parameters()) {
      if (parameter.trainable()) trained += parameter.StoredElements();
      has_outer = has_outer || parameter.adapter_of == "lm_head.weight";
    }
    EXPECT_EQ(ShapeOfStage(whole, {1, 1}, stage).stored_trained, trained) << stage;
    EXPECT_EQ(has_outer, stage == 1);
  }
}

void ExpectNetworkAndItsMergedWeights(const std::vector<ModelSpec>& models, double start) {
  const std::string folder = ::testing::TempDir() + "outer_adapters";
  for (const ModelSpec& model : models) {
    SCOPED_TRACE(model.family + " " + model.head);
    const Batch batch = BatchOf(model);
    TinyRun run(model, ModelOptionsOf(TinyPlan("fp32")));
    TinyRun plain(WithoutPeft(model), ModelOptionsOf(TinyPlan("fp32")));
    EXPECT_LT(Difference(Wide(run.Logits(batch)), Wide(plain.Logits(batch))), start);
    Perturb(run, 0.1);
    EXPECT_GT(Difference(Wide(run.Logits(batch)), Wide(plain.Logits(batch))), 1e-3);
    ASSERT_TRUE(ExportWeights(Env::Posix(), folder, *run.model, {}).ok());
    TinyRun merged(WithoutPeft(model), ModelOptionsOf(TinyPlan("fp32")));
    ASSERT_TRUE(ImportWeights(Env::Posix(), folder, *merged.model).ok());
    ASSERT_TRUE(merged.model->Pack(merged.context).ok());
    EXPECT_LT(Difference(Wide(run.Logits(batch)), Wide(merged.Logits(batch))), 1e-5);
  }
  EXPECT_TRUE(Env::Posix().RemoveTree(folder).ok());
}

TEST(OuterAdapters, StartAsTheNetworkAndAreItsMergedWeights) {
  ExpectNetworkAndItsMergedWeights(Models(), 1e-6);
}

// A magnitude over the length that it started at is 1 within rounding. The biases of the two heads
// of encoders are added after that.
TEST(OuterAdapters, OfDoraStartAsTheNetworkAndAreItsMergedWeights) {
  ExpectNetworkAndItsMergedWeights(DoraModels(), 1e-5);
}

// Gradients take the length for a constant, so that slopes say nothing of factors.
TEST(OuterAdapters, OfDoraChangeTheLossAsGradientsOfMagnitudesSay) {
  for (const ModelSpec& model : {DoraModels()[0], DoraModels()[1], DoraModels()[3]}) {
    SCOPED_TRACE(model.family + " " + model.head);
    const Batch batch = BatchOf(model);
    TinyRun run(model, ModelOptionsOf(TinyPlan("fp32")));
    Perturb(run, 0.1);
    run.Differentiate(batch);
    ParameterSet& parameters = run.model->parameters();
    int64_t checked = 0;
    for (int64_t i = 0; i < parameters.size(); ++i) {
      const bool magnitude = parameters[i].shape.rank == 1 && parameters[i].block < 0;
      if (parameters[i].frozen || !magnitude) continue;
      const std::vector<float> gradient = ValuesOf(parameters.gradient(i));
      double squares = 0;
      for (const double each : gradient) squares += each * each;
      ASSERT_GT(squares, 0) << parameters[i].name;
      const double step = 0.1 / std::sqrt(squares);
      const TensorView value = parameters.value(i);
      const auto moved = [&](double by) {
        for (size_t k = 0; k < gradient.size(); ++k) {
          value.As<float>()[k] += static_cast<float>(by * gradient[k]);
        }
        WEFT_CHECK(run.model->Pack(run.context).ok(), "pack");
        return run.Loss(batch);
      };
      const double up = moved(step), down = moved(-2 * step);
      moved(step);
      EXPECT_NEAR((up - down) / (2 * step) / squares, 1, 0.05) << parameters[i].name;
      ++checked;
    }
    EXPECT_GT(checked, 0);
  }
}

TEST(OuterAdapters, TheLossChangesAsGradientsSay) {
  for (const ModelSpec& model : Models()) {
    SCOPED_TRACE(model.family + " " + model.head);
    const Batch batch = BatchOf(model);
    TinyRun run(model, ModelOptionsOf(TinyPlan("fp32")));
    Perturb(run, 0.1);
    const double loss = run.Differentiate(batch);
    EXPECT_GT(CheckSlopes(run, loss, [&] { return run.Differentiate(batch); }), 0);
    const ParameterSet& parameters = run.model->parameters();
    for (int64_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].frozen) continue;
      EXPECT_GT(Difference(AsDoubles(parameters.gradient(i)),
                           Doubles(parameters[i].shape.Elements(), 0.0)),
                1e-4)
          << parameters[i].name;
    }
  }
}

TEST(OuterAdapters, DroppedInputsOfAClassifierAreThoseOfItsGradients) {
  ModelSpec model = WithHead();
  TinyRun kept(model, ModelOptionsOf(TinyPlan("fp32")));
  model.peft.dropout = 0.3;
  TinyRun run(model, ModelOptionsOf(TinyPlan("fp32")));
  const Batch batch = BatchOf(model);
  for (TinyRun* each : {&kept, &run}) Perturb(*each, 0.1);
  EXPECT_EQ(run.Logits(batch), kept.Logits(batch)) << "nothing is dropped where nothing is trained";
  const double loss = run.Differentiate(batch);
  EXPECT_GT(std::fabs(kept.Differentiate(batch) - loss), 1e-4);
  EXPECT_GT(CheckSlopes(run, loss, [&] { return run.Differentiate(batch); }), 0);
  // Other rows of the global batch have other masks.
  ModelSpec head = WithHead("llama", {"lm_head"});
  head.peft.dropout = 0.3;
  TinyRun alone(head, ModelOptionsOf(TinyPlan("fp32")));
  Perturb(alone, 0.1);
  const double of_first = alone.Differentiate(batch);
  EXPECT_EQ(alone.Differentiate(batch), of_first);
  EXPECT_NE(alone.Differentiate(batch, 1.0f, /*first_sequence=*/2), of_first);
}

TEST(OuterAdapters, MeshesFollowOneRank) {
  const std::vector<Parallelism> meshes = {
      {.data = 2, .block_memory_policy = {"recompute", "recompute"}},
      {.data = 2, .zero_stage = 3},
      {.tensor = 2},
      {.tensor = 2, .sequence_parallel = true},
      {.pipeline = 2},
  };
  const struct {
    const char* init;
    double dropout = 0;
    bool dora = false;
  } kinds[] = {{"default"}, {"pissa"}, {"default", 0.2}, {"default", 0, true}};
  for (const auto& [init, dropout, dora] : kinds) {
    MeshCase c{TinyJob(4), TinyPlan("fp32", 2, 2)};
    c.job.resources.device = "cpu";
    c.job.model = WithHead();
    c.job.model.peft.init = init;
    c.job.model.peft.dropout = dropout;
    c.job.model.peft.use_dora = dora;
    c.job.optimizer.learning_rate = 3e-3;
    c.job.train.steps = 4;
    c.job.train.log_every_steps = 2;
    c.plan.bucket_bytes = 4000;
    const MeshOutcome whole = TrainOnMesh(c).front();
    for (const Parallelism& mesh : meshes) {
      SCOPED_TRACE(std::string(init) + ", dropout " + std::to_string(dropout) +
                   (dora ? ", dora, " : ", ") + mesh.Description());
      ExpectFollows(TrainOnMesh(c.On(mesh)), whole, 2e-5, 1e-4);
    }
  }
}

TEST(OuterAdapters, NameWhatDoesNotFit) {
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  const auto refusal = [&](const ModelSpec& model) {
    return std::string(NewModel(context, model, {}).status().message());
  };
  ModelSpec model = WithHead();
  EXPECT_EQ(refusal(model), "");
  model.untied_classifier = false;
  EXPECT_THAT(refusal(model), HasSubstr("target_modules 'lm_head' names the classifier lm_head, "
                                        "whose weight is the token embedding; hint: "));
  model.peft.target_modules = {};
  model.peft.target_regex = ".*(q_proj|lm_head)";
  EXPECT_THAT(refusal(model), HasSubstr("lm_head)' names the classifier lm_head, "));
  model = WithHead();
  model.peft.dropout = 0.1;
  EXPECT_EQ(refusal(model), "");
  model = WithPooler();
  model.peft.dropout = 0.1;
  EXPECT_THAT(refusal(model), HasSubstr("model.peft.target_modules with bert.pooler.dense does not "
                                        "go with model.peft.dropout"));
  for (ModelSpec dora : DoraModels()) EXPECT_EQ(refusal(dora), "");
  model = WithHead();
  model.peft.use_dora = true;
  model.peft.dropout = 0.1;
  EXPECT_THAT(refusal(model), HasSubstr("model.peft.target_modules with lm_head does not go with "
                                        "model.peft.use_dora with model.peft.dropout"));
  model = WithPooler();
  model.peft.target_modules = {"poler"};
  EXPECT_THAT(refusal(model), HasSubstr("'poler' names no linear layer; hint: "));
  model = WithHead("llama", {"lm_head"});
  model.peft.method = "loha";
  EXPECT_THAT(refusal(model), HasSubstr("'lm_head' names no linear layer of a block"));
}

}  // namespace
}  // namespace weft::engine
