#include "common/model/state_tensors.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/optimizer_bytes.h"
#include "common/model/parameter_list.h"

namespace weft {
namespace {

using ::testing::ElementsAre;

TEST(StateFormat, BytesAreThoseOfTheNumbersAndOfTheScalesOfTheirBlocks) {
  EXPECT_EQ(StateFormat().Bytes(10), 40);
  EXPECT_EQ((StateFormat{.dtype = DType::kBF16}.Bytes(10)), 20);
  const StateFormat scaled{.dtype = DType::kU8, .scale_block = 4};
  EXPECT_EQ(scaled.Scales(0), 0);
  EXPECT_EQ(scaled.Scales(8), 2);
  EXPECT_EQ(scaled.Bytes(10), 10 + 3 * 4);
}

std::vector<std::string> NamesOf(const OptimizerSpec& spec, const ParameterAttributes& parameter,
                                 const std::vector<int64_t>& shape) {
  std::vector<std::string> names;
  for (const StateTensor& tensor : StateTensorsOf(spec, parameter, shape)) {
    names.emplace_back(tensor.name);
  }
  return names;
}

TEST(StateTensors, FollowTheRuleAndTheParameter) {
  const ParameterAttributes of_block{.role = ParameterRole::kMlpUp, .block = 1};
  const ParameterAttributes table{.role = ParameterRole::kTokenEmbedding};
  OptimizerSpec spec;
  spec.name = "muon";
  EXPECT_THAT(NamesOf(spec, of_block, {8, 4}), ElementsAre("momentum"));
  EXPECT_THAT(NamesOf(spec, of_block, {8}), ElementsAre("first_moment", "second_moment"));
  EXPECT_THAT(NamesOf(spec, table, {8, 4}), ElementsAre("first_moment", "second_moment"));
  spec.name = "adafactor";
  EXPECT_THAT(NamesOf(spec, table, {8}), ElementsAre("second_moment"));
  const std::vector<StateTensor> factors = StateTensorsOf(spec, table, {8, 4});
  ASSERT_EQ(factors.size(), 2u);
  EXPECT_THAT(factors[0].shape, ElementsAre(8));
  EXPECT_THAT(factors[1].shape, ElementsAre(4));
  spec.name = "sgd";
  spec.momentum = 0;
  EXPECT_TRUE(NamesOf(spec, table, {8, 4}).empty());
}

TEST(StateTensors, SayWhichOfThemAreMoments) {
  using enum MomentKind;
  const ParameterAttributes of_block{.role = ParameterRole::kMlpUp, .block = 1};
  const auto kinds = [&](const char* name) {
    OptimizerSpec spec;
    spec.name = name;
    spec.momentum = 0.9;
    std::vector<MomentKind> moments;
    for (const StateTensor& tensor : StateTensorsOf(spec, of_block, {8, 4})) {
      moments.push_back(tensor.moment);
    }
    return moments;
  };
  for (const char* name : {"sgd", "lars", "lion", "muon"}) {
    EXPECT_THAT(kinds(name), ElementsAre(kFirst)) << name;
  }
  for (const char* name : {"adam", "adamw", "lamb"}) {
    EXPECT_THAT(kinds(name), ElementsAre(kFirst, kSecond)) << name;
  }
  EXPECT_THAT(kinds("schedule_free_adamw"), ElementsAre(kNone, kNone, kSecond));
  EXPECT_THAT(kinds("adafactor"), ElementsAre(kNone, kNone));
}

TEST(StateTensors, MakeUpTheMemoryOfAnOptimizer) {
  JobSpec job;
  job.model.layers = 2;
  job.model.width = 64;
  job.model.heads = 4;
  job.model.vocab_size = 128;
  job.model.context = 32;
  for (const char* name : {"adamw", "lion", "muon", "adafactor", "schedule_free_adamw"}) {
    job.optimizer.name = name;
    int64_t bytes = 0;
    for (const ParameterInfo& parameter : ParametersOf(job.model)) {
      for (const StateTensor& tensor : StateTensorsOf(job.optimizer, parameter, parameter.shape)) {
        bytes += tensor.format.Bytes(tensor.Numbers());
      }
    }
    EXPECT_EQ(OptimizerBytesOf(job.model, job, DType::kF32).state, bytes) << name;
  }
}

}  // namespace
}  // namespace weft
