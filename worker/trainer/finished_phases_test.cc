// What a job does with phases that were complete before: it takes them as they are, or says why
// not.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/phases.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/engine/comm/hash_store.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/trainer/phases.h"
#include "worker/trainer/phases_testing.h"

namespace weft::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class FinishedPhasesTest : public PhasesTest {
 protected:
  /// Few blocks, then all, in two phases.
  JobSpec Stacked() const {
    JobSpec job = Job({Phase(2), Phase(2, "stack"), Phase(2)});
    job.phases[0].layers = 1;
    return job;
  }

  /// Why `job` does not go on from what is in the folder of run `name`.
  std::string Refusal(const std::string& name, const JobSpec& job) {
    const Status status = Start(name, job).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalid);
    return status.message();
  }

  /// Runs the last phase of `job` as a worker does.
  Result<AttemptOutcome> RunLastPhase(const std::string& name, const JobSpec& job) {
    AttemptSpec whole;
    whole.job_id = name;
    whole.epoch = 1;
    whole.run_dir = Folder(name);
    whole.cache_dir = root_ + "/cache";
    whole.job = job;
    whole.plan = engine::TinyPlan("fp32");
    Listener listener(1000);
    engine::HashStore store;
    auto outcome = RunPhase(Env::Posix(), whole, PhaseCount(job) - 1, listener, store);
    events_ = listener.events;
    return outcome;
  }
};

TEST_F(FinishedPhasesTest, AreRefusedWhereTheJobTrainsThemOtherwise) {
  const JobSpec job = Stacked();
  ASSERT_TRUE(Run("one", job).ok());
  struct Change {
    void (*make)(JobSpec&);
    const char* phase;
    const char* difference;
  };
  const Change changes[] = {
      {[](JobSpec& j) { j.optimizer.learning_rate = 1e-3; }, "phase-1",
       "optimizer.learning_rate was 0.003, is 0.001"},
      {[](JobSpec& j) { j.phases[1].learning_rate = 1e-3; }, "phase-2",
       "optimizer.learning_rate was 0.003, is 0.001"},
      {[](JobSpec& j) { j.phases[1].schedule = "cosine"; }, "phase-2",
       R"(schedule.kind was "constant", is "cosine")"},
      {[](JobSpec& j) { j.phases[0].global_batch = 8; }, "phase-1",
       "train.global_batch was 4, is 8"},
      {[](JobSpec& j) { j.phases[0].steps = 3; }, "phase-1", "train.steps was 2, is 3"},
      {[](JobSpec& j) { j.train.seed = 9; }, "phase-1", "train.seed was 1, is 9"},
      {[](JobSpec& j) { j.phases[1].sampled_layers = 4; }, "phase-2",
       "train.sampled_layers was 0, is 4"},
      {[](JobSpec& j) { j.phases[1].growth.new_blocks = "random"; }, "phase-2",
       R"(growth.new_blocks was "copy", is "random")"},
      {[](JobSpec& j) { j.phases[1].growth.method = "fpi"; }, "phase-2",
       R"(growth.method was "stack", is "fpi")"},
  };
  for (const Change& change : changes) {
    JobSpec other = job;
    change.make(other);
    EXPECT_THAT(Refusal("one", other),
                HasSubstr(Folder("one/") + change.phase +
                          " was trained by another job: " + change.difference + "; hint: "));
  }
}

TEST_F(FinishedPhasesTest, CountWhateverIsMeasuredAndWhereverTheDataAre) {
  JobSpec job = Stacked();
  ASSERT_TRUE(Run("one", job).ok());
  const std::string losses = Read("one/phase-1/loss.jsonl"), state = FinalState("one");
  job.train.eval_every_steps = 1;
  job.train.log_every_steps = 3;
  job.checkpoint.every_steps = 2;
  job.phases[2].learning_rate = 1e-3;  // no step of that phase is left
  job.data.train = {root_ + "/moved.txt"};
  ASSERT_TRUE(WriteFileAtomic(Env::Posix(), job.data.train[0], RepeatedWords()).ok());
  ASSERT_TRUE(Run("one", job).ok());
  EXPECT_EQ(Read("one/phase-1/loss.jsonl"), losses);
  EXPECT_EQ(FinalState("one"), state);

  ASSERT_TRUE(WriteFileAtomic(Env::Posix(), job.data.train[0], RepeatedWords() + "silk").ok());
  EXPECT_THAT(Refusal("one", job), HasSubstr("one/phase-1 was trained on data "));
}

TEST_F(FinishedPhasesTest, AreRefusedWhereTheJobSearchesOtherwise) {
  JobSpec job = Job({Phase(2), Phase(6, "stack"), Phase(2, "stack")});
  job.model.layers = 4;
  job.phases[0].layers = 1;
  job.phases[1].layers = 3;
  job.phases[1].search = {.steps = 3, .layers = {1, 2, 3}, .image_sizes = {}};
  ASSERT_TRUE(Run("search", job).ok());
  ASSERT_TRUE(Run("search", job).ok()) << "the same job";
  JobSpec other = job;
  other.phases[1].search.steps = 4;
  EXPECT_THAT(Refusal("search", other), HasSubstr("had other steps or sizes"));
  other = job;
  other.phases[1].growth.new_blocks = "random";
  EXPECT_THAT(Refusal("search", other),
              HasSubstr(R"(phase-2 was trained by another job: growth.new_blocks was "copy")"));
  other = job;
  other.phases[1].search = {};
  EXPECT_THAT(Refusal("search", other), HasSubstr("phase-2 was trained with a search"));
  ASSERT_TRUE(Run("plain", other).ok());
  EXPECT_THAT(Refusal("plain", job), HasSubstr("phase-2 was trained without a search"));
}

// The last phase of the V-cycle reads the first one as the larger model, and no other phase does.
TEST_F(FinishedPhasesTest, AreNeverGrownFromAnOlderCheckpoint) {
  const JobSpec jobs[] = {Job({Phase(6), Phase(4)}), VCycle()};
  for (const JobSpec& job : jobs) {
    SCOPED_TRACE(job.phases.size());
    const std::string number = std::to_string(job.phases.size());
    const std::string sound = "sound-" + number, run = "damaged-" + number;
    ASSERT_TRUE(Run(sound, job).ok());
    ASSERT_TRUE(Run(run, job).ok());
    const std::string phase = Folder(run + "/phase-1");
    ASSERT_TRUE(Env::Posix().FileExists(engine::CheckpointPath(phase, 4)));
    const std::string state =
        engine::CheckpointPath(phase, 6) + "/state-00000-of-00001.safetensors";
    ASSERT_TRUE(WriteFileAtomic(Env::Posix(), state, "damaged").ok());
    ASSERT_TRUE(Env::Posix().RemoveTree(Folder(run + "/checkpoints")).ok());
    const auto says_so =
        AllOf(HasSubstr(phase + " has no sound checkpoint of its last step, the newest is " +
                        engine::CheckpointPath(phase, 4)),
              HasSubstr(state + " has 7 bytes"), HasSubstr("delete " + phase + "/summary.json and"),
              Not(HasSubstr("training resumes from")));
    EXPECT_THAT(Refusal(run, job), says_so);
    const Status as_worker = RunLastPhase(run, job).status();
    EXPECT_EQ(as_worker.code(), StatusCode::kInvalid);
    EXPECT_THAT(as_worker.message(), says_so);

    ASSERT_TRUE(Env::Posix().RemoveFile(phase + "/summary.json").ok());
    ASSERT_TRUE(Run(run, job).ok());
    EXPECT_EQ(FinalState(run), FinalState(sound));
  }
}

TEST_F(FinishedPhasesTest, KeepTheirPlaceWithoutTheirSummary) {
  const JobSpec job = Job({Phase(2), Phase(3), Phase(4)});
  ASSERT_TRUE(Run("lost", job).ok());
  ASSERT_TRUE(Env::Posix().RemoveFile(Folder("lost/phase-1/summary.json")).ok());
  const auto outcome = RunLastPhase("lost", job);
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  EXPECT_THAT(events_, HasSubstr("phase-1/summary.json is missing"));
  const std::vector<PhaseSummary> phases = Summary("lost").phases;
  ASSERT_EQ(phases.size(), 3u);
  EXPECT_EQ(phases[0].phase, "phase 1 of 3");
  EXPECT_EQ(phases[0].tokens, 0);
  EXPECT_EQ(phases[1].phase, "phase 2 of 3");
  EXPECT_EQ(phases[1].steps, 3);
  EXPECT_EQ(phases[2].steps, 4);
}

}  // namespace
}  // namespace weft::trainer
