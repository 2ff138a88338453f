#include "worker/trainer/loss_curve.h"

#include <cmath>

#include <gtest/gtest.h>

#include "common/env_fault.h"
#include "common/json.h"

namespace weft::trainer {
namespace {

std::string Curve(Env& env) {
  return *ReadFile(env, "/run/loss.jsonl");
}

TEST(LossCurve, HoldsEachStepOnceWhateverTheAttempts) {
  FaultEnv env;
  ASSERT_TRUE(env.CreateDirs("/run").ok());
  std::string whole;
  {
    LossCurve curve = *LossCurve::Open(env, "/run", 0);
    for (int64_t step = 1; step <= 6; ++step) {
      ASSERT_TRUE(curve.Append(step, 5.0 / static_cast<double>(step), 0.1).ok());
    }
    whole = Curve(env);
  }
  LossCurve resumed = *LossCurve::Open(env, "/run", 4);
  for (int64_t step = 5; step <= 6; ++step) {
    ASSERT_TRUE(resumed.Append(step, 5.0 / static_cast<double>(step), 0.1).ok());
  }
  EXPECT_EQ(Curve(env), whole);
  LossCurve again = *LossCurve::Open(env, "/run", 0);
  EXPECT_EQ(Curve(env), "") << "a fresh start forgets the old curve";
}

TEST(LossCurve, NumbersReadBackExactly) {
  FaultEnv env;
  ASSERT_TRUE(env.CreateDirs("/run").ok());
  LossCurve curve = *LossCurve::Open(env, "/run", 0);
  const double loss = 0.1 + 0.2;
  ASSERT_TRUE(curve.Append(1, loss, 1.0 / 3).ok());
  const Json line = *ParseJson(Curve(env));
  EXPECT_EQ(line["loss"].get<double>(), loss);
  EXPECT_EQ(line["learning_rate"].get<double>(), 1.0 / 3);
  EXPECT_EQ(line["step"], 1);
  ASSERT_TRUE(curve.Append(2, std::nan(""), 0).ok());
  EXPECT_NE(Curve(env).find("null"), std::string::npos);
}

TEST(LossCurve, KeepsTheAccuracyOfClassification) {
  FaultEnv env;
  ASSERT_TRUE(env.CreateDirs("/run").ok());
  {
    LossCurve curve = *LossCurve::Open(env, "/run", 0);
    EXPECT_EQ(curve.RecentAccuracy(), std::nullopt);
    ASSERT_TRUE(curve.Append(1, 1.0, 0.1, 0.25).ok());
    ASSERT_TRUE(curve.Append(2, 1.0, 0.1, 0.75).ok());
    EXPECT_EQ(curve.RecentAccuracy(), 0.5);
  }
  EXPECT_EQ(LossCurve::Open(env, "/run", 2)->RecentAccuracy(), 0.5) << "over attempts";
  EXPECT_EQ(LossCurve::Open(env, "/run", 1)->RecentAccuracy(), 0.25);
}

TEST(LossCurve, TheRecentMeanSpansAttempts) {
  FaultEnv env;
  ASSERT_TRUE(env.CreateDirs("/run").ok());
  LossCurve curve = *LossCurve::Open(env, "/run", 0);
  EXPECT_EQ(curve.RecentMean(), 0);
  for (int64_t step = 1; step <= 150; ++step) {
    ASSERT_TRUE(curve.Append(step, step == 150 ? std::nan("") : 1.0 * step, 0.1).ok());
  }
  EXPECT_EQ(curve.RecentMean(), 100) << "mean of 51 .. 149";
  LossCurve resumed = *LossCurve::Open(env, "/run", 150);
  EXPECT_EQ(resumed.RecentMean(), 100);
}

TEST(LossCurve, ALineCutOffByACrashIsDropped) {
  FaultEnv env;
  ASSERT_TRUE(env.CreateDirs("/run").ok());
  const std::string line = "{\"learning_rate\":0.1,\"loss\":2.0,\"step\":1}\n";
  for (const char* rest : {"{\"learning_ra", "{\"step\":2}x\n", "\x00\x00\n", "[2]\n"}) {
    ASSERT_TRUE(WriteFileAtomic(env, "/run/loss.jsonl", line + rest).ok());
    ASSERT_TRUE(LossCurve::Open(env, "/run", 5).ok());
    EXPECT_EQ(Curve(env), line);
  }
}

TEST(LossCurve, ACrashWhileOpeningLosesNothing) {
  for (int64_t crash_at = 1; crash_at <= 6; ++crash_at) {
    FaultEnv env;
    ASSERT_TRUE(env.CreateDirs("/run").ok());
    {
      LossCurve curve = *LossCurve::Open(env, "/run", 0);
      ASSERT_TRUE(curve.Append(1, 2.0, 0.1).ok());
    }
    env.SyncAll();
    const std::string before = Curve(env);
    env.CrashAtOperation(env.operations() + crash_at);
    (void)LossCurve::Open(env, "/run", 1);
    env.SimulateCrash();
    EXPECT_EQ(Curve(env), before) << crash_at;
  }
}

}  // namespace
}  // namespace weft::trainer
