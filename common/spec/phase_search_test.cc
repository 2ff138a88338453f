#include "common/spec/phase_search.h"

#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/phases.h"
#include "common/spec/testing.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

/// Chooses between two and four of six layers, then has all.
JobSpec Search() {
  JobSpec job = GoodJob();
  job.schedule.warmup_steps = 10;
  PhaseSpec first, last;
  first.steps = 100;
  first.layers = 4;
  first.search.steps = 40;
  first.search.layers = {2, 3, 4};
  last.steps = 200;
  last.growth.method = "stack";
  job.phases = {first, last};
  return job;
}

std::string Error(const std::function<void(JobSpec&)>& change) {
  JobSpec job = Search();
  change(job);
  const Status status = ValidateJob(job);
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  return status.message();
}

TEST(PhaseSearch, ChoosesFromLayersOfWhichThePhaseHasTheMost) {
  const JobSpec job = Search();
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  EXPECT_TRUE(SearchesSizes(job));
  EXPECT_EQ(JobOfPhase(job, 0).model.layers, 4);
  JobSpec plain = job;
  plain.phases[0].search = {};
  EXPECT_FALSE(SearchesSizes(plain));
  JobSpec averaged = job;
  averaged.train.averaging.kind = "ema";
  averaged.phases[1].growth.new_blocks = "averaged";
  EXPECT_TRUE(ValidateJob(averaged).ok()) << ValidateJob(averaged).message();
}

TEST(PhaseSearch, RefusesChoicesThatAreNone) {
  EXPECT_THAT(Error([](JobSpec& j) {
                j.phases[0].search.layers = {2, 4};
              }),
              HasSubstr("phases[0].search.layers must be three or more different numbers"));
  EXPECT_THAT(Error([](JobSpec& j) {
                j.phases[0].search.layers = {2, 4, 2};
              }),
              HasSubstr("three or more different numbers"));
  EXPECT_THAT(Error([](JobSpec& j) {
                j.phases[0].search.layers = {0, 2, 4};
              }),
              HasSubstr("numbers from 1 on"));
  EXPECT_THAT(Error([](JobSpec& j) {
                j.phases[0].search.layers = {1, 2, 3};
              }),
              HasSubstr("has at most 3, and the phase has 4 layers"));
  EXPECT_THAT(Error([](JobSpec& j) { j.phases[0].search.steps = 0; }),
              HasSubstr("phases[0].search.layers is given and search.steps is not"));
  EXPECT_THAT(Error([](JobSpec& j) { j.phases[0].search.steps = 100; }),
              HasSubstr("phases[0].search.steps 100 must be less than the steps of the phase"));
  EXPECT_THAT(Error([](JobSpec& j) {
                j.phases[1].search.steps = 40;
                j.phases[1].search.layers = {4, 5, 6};
              }),
              HasSubstr("phases[1].search.steps: the last phase trains model"));
}

TEST(PhaseSearch, RefusesWhatCountsOnTheSameLayers) {
  const std::string refused = "phases[0]: phases[].search.steps 40 does not go with ";
  EXPECT_THAT(Error([](JobSpec& j) { j.phases[0].sampled_layers = 8; }),
              HasSubstr(refused + "train.sampled_layers 8"));
  EXPECT_THAT(Error([](JobSpec& j) { j.model.stochastic_depth.rate = 0.1; }), HasSubstr(refused));
  EXPECT_THAT(Error([](JobSpec& j) { j.resources.recompute = "optimal"; }),
              HasSubstr(refused + "resources.recompute optimal"));
  EXPECT_THAT(Error([](JobSpec& j) { j.resources.zero_stage = 1; }), HasSubstr(refused));
  EXPECT_THAT(Error([](JobSpec& j) { j.resources.ranks = 2; }),
              HasSubstr(refused + "resources.ranks 2, because one rank with the whole network"));
  EXPECT_THAT(Error([](JobSpec& j) { j.resources.offload_activations = "host"; }),
              HasSubstr(refused + "resources.offload_activations host"));
  JobSpec sampled = Search();
  sampled.phases[1].sampled_layers = 12;
  EXPECT_TRUE(ValidateJob(sampled).ok()) << "another phase; " << ValidateJob(sampled).message();
}

TEST(PhaseSearch, RefusesSizesThatOtherPhasesKnow) {
  EXPECT_THAT(
      Error([](JobSpec& j) {
        j.phases[0].layers = -1;
        j.phases[0].search.layers = {2, 4, 6};
        j.phases[1].growth = {};
      }),
      HasSubstr("phases[0].search.steps does not go with growth.method none of the next phase"));
  EXPECT_THAT(Error([](JobSpec& j) {
                j.phases.insert(j.phases.begin(), j.phases[0]);
                j.phases[0].layers = 2;
                j.phases[0].search = {};
                j.phases[1].growth.method = "msg";
                j.phases[1].growth.ramp_steps = 10;
              }),
              HasSubstr("phases[1].search.steps does not go with growth.method msg, because"));
  EXPECT_THAT(Error([](JobSpec& j) {
                j.phases[1].growth.method = "decoalesce";
                j.phases[1].growth.alpha = 1;
                j.phases[0].layers = 3;
                j.phases[0].search.layers = {1, 2, 3};
              }),
              HasSubstr("phases[0].search.steps does not go with growth.method decoalesce"));
}

}  // namespace
}  // namespace weft
