#include "common/spec/phase_search.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

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

/// Images of 16 or 32 pixels, with two to four of six layers.
JobSpec ImageSearch() {
  JobSpec job = Search();
  job.model.family = "vit";
  job.model.image_size = 48;
  job.model.patch_size = 8;
  job.data.train = {"train-images-idx3-ubyte"};
  job.phases[0].image_size = 32;
  job.phases[0].search.image_sizes = {16, 32};
  return job;
}

std::string Error(const std::function<void(JobSpec&)>& change, JobSpec job = Search()) {
  change(job);
  const Status status = ValidateJob(job);
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  return status.message();
}

TEST(PhaseSearch, ChoosesFromLayersUpToThoseOfThePhase) {
  const JobSpec job = Search();
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  EXPECT_EQ(JobOfPhase(job, 0).model.layers, 4);
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

TEST(PhaseSearch, ChoosesFromEachNumberOfLayersWithEachSizeOfImages) {
  JobSpec job = ImageSearch();
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  const auto sizes = [&] { return PhaseSizes(job.phases[0].search, JobOfPhase(job, 0).model); };
  const std::vector<PhaseSize> both = {{2, 16}, {2, 32}, {3, 16}, {3, 32}, {4, 16}, {4, 32}};
  EXPECT_EQ(sizes(), both);
  job.phases[0].search.layers.clear();
  job.phases[0].search.image_sizes = {8, 16, 32};
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  const std::vector<PhaseSize> images = {{4, 8}, {4, 16}, {4, 32}};
  EXPECT_EQ(sizes(), images);
  job.phases[0].layers = -1;
  job.phases[1].growth = {};
  EXPECT_TRUE(ValidateJob(job).ok()) << "the layers stay; " << ValidateJob(job).message();
}

TEST(PhaseSearch, RefusesSizesOfImagesThatAreNoChoice) {
  const auto error = [](std::vector<int64_t> images) {
    return Error([&](JobSpec& j) { j.phases[0].search.image_sizes = std::move(images); },
                 ImageSearch());
  };
  EXPECT_THAT(error({12, 32}), HasSubstr("phases[0].search.image_sizes must be different multiples "
                                         "of model.patch_size 8"));
  EXPECT_THAT(error({32, 32}), HasSubstr("must be different multiples"));
  EXPECT_THAT(error({16, 24}), HasSubstr("has at most 24, and the phase has 32 pixels a side"));
  EXPECT_THAT(Error([](JobSpec& j) { j.phases[0].search.layers.clear(); }, ImageSearch()),
              HasSubstr("three or more choices of layers and image_sizes"));
  EXPECT_THAT(Error([](JobSpec& j) { j.phases[1].growth.method = "ligo"; }, ImageSearch()),
              HasSubstr("does not go with growth.method ligo of the next phase"));
  EXPECT_THAT(Error([](JobSpec& j) {
                j.phases[0].search.image_sizes = {16, 32};
              }),
              HasSubstr("phases[0].search.image_sizes is for model.family vit, not gpt2"));
  EXPECT_THAT(Error(
                  [](JobSpec& j) {
                    j.phases[0].search.steps = 0;
                    j.phases[0].search.layers.clear();
                  },
                  ImageSearch()),
              HasSubstr("phases[0].search.image_sizes is given and search.steps is not"));
}

// 40 of 100 steps draw one of the choices, each as likely as the others.
TEST(PhaseSearch, CountsTheMeanOfItsChoices) {
  const JobSpec job = ImageSearch();
  const JobSpec largest = JobOfPhase(job, 0);
  double mean = 0;
  for (const int64_t layers : {2, 3, 4}) {
    for (const int64_t size : {16, 32}) {
      JobSpec one = largest;
      one.model.layers = layers;
      one.model.image_size = size;
      mean += StepFlops(one) / 6;
    }
  }
  EXPECT_LT(mean, 0.6 * StepFlops(largest));
  EXPECT_NEAR(SearchFlopsShare(job, 0), 0.6 + 0.4 * mean / StepFlops(largest), 1e-12);
  EXPECT_EQ(SearchFlopsShare(job, 1), 1);
}

TEST(PhaseSearch, RefusesWhatCountsOnTheSameLayers) {
  const std::string refused = "phases[0]: phases[].search.steps 40 does not go with ";
  EXPECT_THAT(Error([](JobSpec& j) { j.phases[0].sampled_layers = 8; }),
              HasSubstr(refused + "train.sampled_layers 8"));
  EXPECT_THAT(Error([](JobSpec& j) { j.model.stochastic_depth.rate = 0.1; }), HasSubstr(refused));
  EXPECT_THAT(Error([](JobSpec& j) { j.resources.recompute = "optimal"; }),
              HasSubstr(refused + "resources.recompute optimal"));
  EXPECT_THAT(Error([](JobSpec& j) { j.resources.zero_stage = 3; }),
              HasSubstr(refused + "resources.zero_stage 3"));
  EXPECT_THAT(Error([](JobSpec& j) { j.resources.pipeline_parallel = 2; }),
              HasSubstr(refused + "resources.pipeline_parallel 2"));
  EXPECT_THAT(Error([](JobSpec& j) { j.resources.offload_activations = "host"; }),
              HasSubstr(refused + "resources.offload_activations host"));
  JobSpec shared = Search();
  shared.resources.ranks = 4;
  shared.resources.tensor_parallel = 2;
  shared.resources.zero_stage = 2;
  EXPECT_TRUE(ValidateJob(shared).ok()) << ValidateJob(shared).message();
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
  EXPECT_THAT(Error([](JobSpec& j) { j.phases[1].growth.freeze_old = true; }),
              HasSubstr("phases[0].search.steps does not go with growth.freeze_old of the next"));
  EXPECT_THAT(Error([](JobSpec& j) {
                j.phases.insert(j.phases.begin(), j.phases[0]);
                j.phases[0].layers = 1;
                j.phases[0].search = {};
                j.phases[1].growth.method = "stack";
                j.phases[1].growth.freeze_old = true;
              }),
              HasSubstr("phases[1].search.steps does not go with growth.freeze_old of the same"));
  JobSpec images = ImageSearch();
  images.phases[0].search.layers.clear();
  images.phases[0].search.image_sizes = {8, 16, 32};
  images.phases[1].growth.freeze_old = true;
  EXPECT_TRUE(ValidateJob(images).ok()) << "blocks are known; " << ValidateJob(images).message();
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
