#include <sstream>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "cli/follow.h"
#include "common/spec/job_spec.h"
#include "proto/convert.h"

namespace weft::cli {
namespace {

/// A ticket of two rounds, each of 97 steps after step 3 of a first training of 100.
JobSpec LotteryTicket() {
  JobSpec spec;
  spec.name = "ticket";
  spec.data.train = {"text.txt"};
  spec.train.steps = 100 + 2 * 97;
  spec.train.pruning.method = "lottery_ticket";
  spec.train.pruning.density = 0.64;
  spec.train.pruning.rounds = 2;
  spec.train.pruning.rewind_step = 3;
  return spec;
}

v1::Job JobAt(int64_t step, const JobSpec& spec) {
  v1::Job job;
  job.set_id("ticket-abcde");
  job.set_state(v1::RUNNING);
  *job.mutable_spec() = ToProto<v1::JobSpec>(spec);
  job.mutable_progress()->set_step(step);
  job.mutable_progress()->set_steps_total(spec.train.steps);
  return job;
}

TEST(PartText, SaysWhichRoundTheNewestStepIsOf) {
  const std::tuple<int64_t, double, const char*> places[] = {
      {1, 1, "first training, step 1 of 100, density 100.0%"},
      {100, 1, "first training, step 100 of 100, density 100.0%"},
      {101, 0.8, "round 1 of 2, step 1 of 97, density 80.0%"},
      {197, 0.8, "round 1 of 2, step 97 of 97, density 80.0%"},
      {198, 0.64, "round 2 of 2, step 1 of 97, density 64.0%"},
      {294, 0.64, "round 2 of 2, step 97 of 97, density 64.0%"}};
  for (const auto& [step, density, text] : places) {
    v1::Job job = JobAt(step, LotteryTicket());
    (*job.mutable_progress()->mutable_technique_metrics())["density_ratio"] = density;
    EXPECT_EQ(PartText(job), text);
  }
  EXPECT_EQ(PartText(JobAt(294, LotteryTicket())), "round 2 of 2, step 97 of 97")
      << "no density was reported";
}

TEST(PartText, IsEmptyOfOneTrainingAndWhereNothingIsKnown) {
  EXPECT_EQ(PartText(JobAt(0, LotteryTicket())), "") << "before the first step";
  JobSpec plain = LotteryTicket();
  plain.train.pruning.method = "magnitude";
  EXPECT_EQ(PartText(JobAt(110, plain)), "");
  v1::Job listed = JobAt(110, LotteryTicket());
  listed.clear_spec();
  EXPECT_EQ(PartText(listed), "") << "lists have no spec";
}

TEST(PartText, IsFollowed) {
  const v1::Job job = JobAt(110, LotteryTicket());
  std::ostringstream plain, block;
  FollowView(plain, /*terminal=*/false).Update(job);
  EXPECT_NE(plain.str().find(" tokens/s\n  round 1 of 2, step 10 of 97\n"), std::string::npos)
      << plain.str();
  FollowView(block, /*terminal=*/true, [] { return ScreenSize{80, 24}; }).Update(job);
  EXPECT_NE(block.str().find("RUNNING  round 1 of 2, step 10 of 97\n"), std::string::npos)
      << block.str();
}

}  // namespace
}  // namespace weft::cli
