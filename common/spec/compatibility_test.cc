#include "common/spec/compatibility.h"

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/technique_cost.h"
#include "common/spec/feature_testing.h"
#include "common/spec/features.h"
#include "common/spec/testing.h"

namespace weft {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using namespace features;

/// A valid job that asks for neither feature, and is valid with either; of another family or
/// activation where those of others do not do.
JobSpec JobWithout(const Refusal& row) {
  for (const char* activation : {"auto", "squared_relu"}) {
    for (const char* family : {"gpt2", "llama", "bert", "vit"}) {
      JobSpec job = GoodJob();
      job.model.family = family;
      job.model.activation = activation;
      job.schedule.kind = "constant";  // the default is a feature of a row
      if (Asks(job, *row.feature) || Asks(job, *row.with)) continue;
      if (ValidateJob(With(job, row.feature)).ok() && ValidateJob(With(job, row.with)).ok()) {
        return job;
      }
    }
  }
  ADD_FAILURE() << "no job is valid with each of the two alone";
  return GoodJob();
}

/// The rows that refuse `job`.
std::vector<const Refusal*> RowsOf(const JobSpec& job) {
  std::vector<const Refusal*> rows;
  for (const Refusal& row : Refusals()) {
    if (FindRefusal({&row, 1}, job) != nullptr) rows.push_back(&row);
  }
  return rows;
}

TEST(Compatibility, EachRowAloneRefusesAJobThatIsValidWithoutEitherOfTheTwo) {
  for (const Refusal& row : Refusals()) {
    SCOPED_TRACE(std::string(row.feature->name) + " with " + std::string(row.with->name));
    const JobSpec job = JobWithout(row);
    const JobSpec one = With(job, row.feature), other = With(job, row.with);
    EXPECT_TRUE(Asks(one, *row.feature) && !Asks(one, *row.with));
    EXPECT_TRUE(Asks(other, *row.with) && !Asks(other, *row.feature));
    const JobSpec both = With(one, row.with);
    EXPECT_THAT(RowsOf(both), ::testing::ElementsAre(&row));
    const Status status = ValidateJob(both);
    EXPECT_EQ(status.code(), StatusCode::kInvalid);
    // Rows about phases name the phase first.
    EXPECT_THAT(status.message(),
                row.feature->of_phases || row.with->of_phases
                    ? ::testing::Matcher<std::string>(EndsWith(RefusalText(row, both)))
                    : RefusalText(row, both));
  }
}

TEST(Compatibility, ARowIsThereOnceAndNextToThoseOfItsFeature) {
  std::set<std::pair<const Feature*, const Feature*>> pairs;
  std::set<const Feature*> begun;
  const Feature* last = nullptr;
  for (const Refusal& row : Refusals()) {
    EXPECT_TRUE(pairs.insert({row.feature, row.with}).second) << row.feature->name;
    EXPECT_FALSE(pairs.contains({row.with, row.feature})) << row.feature->name;
    if (row.feature == last) continue;
    EXPECT_TRUE(begun.insert(row.feature).second) << row.feature->name;
    last = row.feature;
  }
}

TEST(Compatibility, RowsOfATechniqueAreAboutIt) {
  for (const TechniqueCost* technique : TechniqueCosts()) {
    for (const Refusal& row : technique->refusals()) {
      if (row.feature == &technique->feature()) continue;
      const std::span<const Feature> settings = technique->settings();
      const bool own = std::any_of(settings.begin(), settings.end(),
                                   [&](const Feature& setting) { return row.feature == &setting; });
      EXPECT_TRUE(own) << technique->name();
    }
    for (const Feature& setting : technique->settings()) {
      EXPECT_TRUE(technique->Asked(With(GoodJob(), &setting))) << setting.setting;
    }
  }
}

TEST(Compatibility, TextsAreClauses) {
  std::set<std::string_view> names;
  std::set<const Feature*> features;
  for (const Refusal& row : Refusals()) {
    features.insert({row.feature, row.with});
    for (const std::string_view text : {row.because, row.hint}) {
      EXPECT_FALSE(text.empty()) << row.feature->name;
      EXPECT_THAT(std::string(text), Not(EndsWith("."))) << row.feature->name;
      EXPECT_THAT(std::string(text), Not(HasSubstr("; "))) << row.feature->name;
      EXPECT_THAT(std::string(text), Not(HasSubstr("not implemented"))) << row.feature->name;
    }
  }
  for (const Feature* feature : features) {
    EXPECT_TRUE(names.insert(feature->name).second) << feature->name;
    // A refusal begins with the field that the feature is about.
    const std::string shown = feature->shown(With(GoodJob(), feature));
    const std::string field(feature->setting.substr(0, feature->setting.find(' ')));
    EXPECT_THAT(shown, StartsWith(field.substr(0, field.find('.') + 1)));
  }
}

TEST(Compatibility, ATextSaysWhatTheJobAsksFor) {
  EXPECT_EQ(ErrorAfter([](JobSpec& job) {
              job.resources.pipeline_parallel = 3;
              job.resources.zero_stage = 2;
            }),
            "resources.pipeline_parallel 3 does not go with resources.zero_stage 2, because ZeRO "
            "reduces the gradients of each micro-batch before the next, and a pipeline has several "
            "in flight; hint: resources.zero_stage 1");
}

TEST(Compatibility, RowsAboutAnImportedModelHoldOnceItIsKnown) {
  JobSpec job = GoodJob();
  job.model.import_path = "folder";
  job.model.family = "llama";
  job.model.sliding_window = 64;
  job.resources.context_parallel = 2;
  EXPECT_TRUE(ValidateJob(job).ok()) << "the folder replaces the window";
  job.data.tokenizer.path = "folder";
  EXPECT_THAT(ValidateKnownSizes(job).message(), HasSubstr("model.sliding_window 64"));
  // What a folder does not replace is refused before.
  job.model.dropout = 0.1;
  EXPECT_THAT(ValidateJob(job).message(), HasSubstr("model.dropout"));
}

TEST(Compatibility, WhatIsLeftToThePlannerIsNotAskedFor) {
  JobSpec job = GoodJob();
  job.model.over_parameterization.kind = "linear_expansion";
  job.resources.offload_optimizer = "auto";
  EXPECT_TRUE(CheckCompatibility(job).ok());
  job.resources.offload_optimizer = "host";
  EXPECT_FALSE(CheckCompatibility(job).ok());
}

}  // namespace
}  // namespace weft
