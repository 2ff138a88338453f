#include "common/spec/spec_key.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/spec/job_spec.h"
#include "common/spec/spec_json.h"

namespace weft {
namespace {

std::string KeyOf(const JobSpec& spec) {
  std::string key;
  AppendKey(spec, key);
  return key;
}

TEST(SpecKey, IsTheSameForTheSameMembers) {
  JobSpec spec;
  spec.name = "a";
  spec.data.train = {"b", "c"};
  EXPECT_EQ(KeyOf(spec), KeyOf(JobSpec(spec)));
}

TEST(SpecKey, DiffersWithAnyMember) {
  JobSpec spec;
  spec.data.train = {"b", "c"};
  std::vector<JobSpec> others(7, spec);
  others[0].data.train = {"bc"};
  others[1].data.train = {"b", "c", ""};
  others[2].data.validation = {"b"};
  others[3].train.steps += 1;
  others[4].optimizer.learning_rate *= 2;
  others[5].scheduling.preemptible = !spec.scheduling.preemptible;
  others[6].phases.emplace_back();
  for (const JobSpec& other : others) EXPECT_NE(KeyOf(other), KeyOf(spec)) << ToJson(other);
}

/// Text does not run over into the member after it.
TEST(SpecKey, TellsWhereTextsEnd) {
  JobSpec first, second;
  first.name = "ab";
  first.data.train = {"c", "d"};
  second.name = "a";
  second.data.train = {"bc", "d"};
  EXPECT_NE(KeyOf(first), KeyOf(second));
}

}  // namespace
}  // namespace weft
