// What imports take of the objective of training, and what they refuse once sizes are known.
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env.h"
#include "common/formats/huggingface.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

std::string Fixture(const std::string& name) {
  return WEFT_SOURCE_DIR "/tests/parity/testdata/" + name + "/start";
}

Json Config(const std::string& name) {
  Result<std::string> text = ReadFile(Env::Posix(), Fixture(name) + "/config.json");
  EXPECT_TRUE(text.ok()) << text.status().ToString();
  return *ParseJson(*text);
}

ModelSpec Read(const Json& config, const ModelSpec& base = {}) {
  Result<ModelSpec> model = ModelFromConfig(config, base);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return model.ok() ? *model : ModelSpec();
}

/// Where a family's files have a number of the objective, and what transformers assumes without it.
struct Place {
  const char* family;
  std::vector<const char*> keys;
  std::optional<double> ModelSpec::*field;
  double assumed;
};

const Place kPlaces[] = {
    {"gpt2", {"resid_pdrop", "embd_pdrop"}, &ModelSpec::dropout, 0.1},
    {"gpt2", {"attn_pdrop"}, &ModelSpec::attention_dropout, 0.1},
    {"bert_mlm", {"hidden_dropout_prob"}, &ModelSpec::dropout, 0.1},
    {"bert_mlm", {"attention_probs_dropout_prob"}, &ModelSpec::attention_dropout, 0.1},
    {"vit", {"hidden_dropout_prob"}, &ModelSpec::dropout, 0},
    {"vit", {"attention_probs_dropout_prob"}, &ModelSpec::attention_dropout, 0},
    {"llama", {"attention_dropout"}, &ModelSpec::attention_dropout, 0},
    {"qwen2", {"attention_dropout"}, &ModelSpec::attention_dropout, 0},
    {"mixtral", {"attention_dropout"}, &ModelSpec::attention_dropout, 0},
    {"mixtral", {"router_aux_loss_coef"}, &ModelSpec::router_aux_loss, 0.001},
};

TEST(ImportedObjective, IsThatOfTheFileUnlessTheJobSaysOtherwise) {
  for (const Place& place : kPlaces) {
    SCOPED_TRACE(std::string(place.family) + " " + place.keys.front());
    Json config = Config(place.family);
    for (const char* key : place.keys) config[key] = 0.375;
    const ModelSpec model = Read(config);
    EXPECT_EQ(model.*place.field, 0.375);
    const Result<Json> exported = ModelToConfig(model);
    ASSERT_TRUE(exported.ok()) << exported.status().ToString();
    for (const char* key : place.keys) EXPECT_EQ(exported->at(key), 0.375) << "and in exports";

    ModelSpec job;
    job.*place.field = 0;
    EXPECT_EQ(Read(config, job).*place.field, 0.0);

    for (const char* key : place.keys) config.erase(key);
    EXPECT_EQ(Read(config).*place.field, place.assumed);
  }
}

TEST(ImportedObjective, WhatIsOneNumberHereIsRefusedWhereTheFileTellsItApart) {
  Json gpt2 = Config("gpt2");
  gpt2["embd_pdrop"] = 0.25;
  EXPECT_EQ(ModelFromConfig(gpt2, {}).status().message(),
            "resid_pdrop in config.json is 0.0 and embd_pdrop is 0.25, and both are model.dropout; "
            "hint: give model.dropout in the job");
  ModelSpec job;
  job.dropout = 0.125;
  EXPECT_EQ(Read(gpt2, job).dropout, 0.125);

  Json bert = Config("bert_classes");
  bert["hidden_dropout_prob"] = 0.25;
  EXPECT_EQ(Read(bert).dropout, 0.25);
  bert["classifier_dropout"] = nullptr;
  EXPECT_EQ(Read(bert).dropout, 0.25) << "which it then is";
  bert["classifier_dropout"] = 0.5;
  EXPECT_THAT(ModelFromConfig(bert, {}).status().message(), HasSubstr("classifier_dropout is 0.5"));

  Json wrong = Config("llama");
  wrong["attention_dropout"] = "none";
  EXPECT_THAT(ModelFromConfig(wrong, {}).status().message(),
              HasSubstr("attention_dropout in config.json must be a number"));
  wrong["attention_dropout"] = 1.5;
  EXPECT_THAT(ModelFromConfig(wrong, {}).status().message(), HasSubstr("attention_dropout"));
}

TEST(ImportedObjective, ExportsSayNothingThatTransformersWouldNotDo) {
  ModelSpec model = Read(Config("mixtral"));
  model.normalize_expert_weights = false;
  EXPECT_THAT(ModelToConfig(model).status().message(),
              HasSubstr("model.normalize_expert_weights false cannot be combined with an export"));
}

/// A valid job that starts from a folder.
JobSpec JobOf(const std::string& fixture) {
  JobSpec job;
  job.name = "imported";
  job.model.import_path = job.data.tokenizer.path = Fixture(fixture);
  job.data.train = {"text"};
  job.train.sequence_length = 16;
  job.train.precision = "fp32";
  job.train.global_batch = 8;
  job.resources.ranks = 4;
  return job;
}

TEST(ResolveImportedModel, FindsWhatCannotBeTrainedOnceSizesAreKnown) {
  const struct {
    const char* fixture;
    std::function<void(JobSpec&)> change;
    const char* message;
  } cases[] = {
      {"gpt2", [](JobSpec& job) { job.resources.pipeline_parallel = 4; },
       "makes 4 stages, and each needs a block"},
      {"gpt2", [](JobSpec& job) { job.resources.tensor_parallel = 4; },
       "needs model.heads in equal parts, and it is 2"},
      {"gpt2",
       [](JobSpec& job) {
         job.resources.tensor_parallel = 2;
         job.resources.sequence_parallel = true;
         job.train.sequence_length = 15;
       },
       "a multiple of 2"},
      {"gpt2",
       [](JobSpec& job) {
         job.resources.ranks = job.resources.context_parallel = 5;
         job.train.sequence_length = 0;  // that of the folder
       },
       "its length is 24"},
      {"mistral", [](JobSpec& job) { job.resources.context_parallel = 2; }, "sliding_window"},
      {"llama", [](JobSpec& job) { job.train.precision = "fp8"; }, "multiples of 16"},
      {"llama", [](JobSpec& job) { job.model.expert_capacity = 1.5; }, "needs model.experts"},
      {"mixtral",
       [](JobSpec& job) {
         job.resources.ranks = 3;
         job.train.global_batch = 9;
         job.resources.expert_parallel = 3;
       },
       "must divide model.experts 4"},
      {"gpt2",
       [](JobSpec& job) {
         job.resources.offload_optimizer = "host";
         job.resources.device_updated_units = {7};
       },
       "device_updated_units has 7"},
  };
  for (const auto& c : cases) {
    JobSpec job = JobOf(c.fixture);
    ASSERT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).ToString();
    JobSpec resolved = job;
    ASSERT_TRUE(ResolveImportedModel(Env::Posix(), resolved).ok());
    c.change(job);
    EXPECT_TRUE(ValidateJob(job).ok())
        << "sizes are not known yet: " << ValidateJob(job).ToString();
    const Status status = ResolveImportedModel(Env::Posix(), job);
    EXPECT_EQ(status.code(), StatusCode::kInvalid) << c.message;
    EXPECT_THAT(status.message(), HasSubstr(c.message));
    EXPECT_THAT(status.message(), HasSubstr(Fixture(c.fixture)));
  }
}

}  // namespace
}  // namespace weft
