// Ranks of jobs with phases are killed where a phase begins, grows, searches or ends: the job goes
// on in the phase in which it was, to the bits of one that was left alone.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/framework/cluster.h"

namespace weft::testing {
namespace {

using std::chrono::seconds;

/// Where the ranks of an attempt, counted from 1 over the whole job, die.
struct Kill {
  int attempt;
  std::string failpoint;
};

/// A program for workers to start ranks with: those of the job "killed" die as listed, those of
/// other jobs and attempts do not.
class MortalTrainer {
 public:
  explicit MortalTrainer(const std::vector<Kill>& kills) {
    std::ofstream script(path_);
    script << "#!/bin/sh\ncase \"$WEFT_ATTEMPT\" in\n";
    for (const Kill& kill : kills) {
      script << "killed-*:" << kill.attempt << ") export WEFT_FAILPOINTS=" << kill.failpoint
             << " ;;\n";
    }
    script << "esac\nexec " << WEFT_BINARY_DIR "/weft-trainer \"$@\"\n";
    script.close();
    EXPECT_EQ(chmod(path_.c_str(), 0755), 0);
  }
  ~MortalTrainer() { unlink(path_.c_str()); }
  MortalTrainer(const MortalTrainer&) = delete;
  MortalTrainer& operator=(const MortalTrainer&) = delete;

  Environment environment() const { return {{"WEFT_WORKER_TRAINER", path_}}; }

 private:
  std::string path_ = ::testing::TempDir() + "mortal_trainer_" + std::to_string(getpid());
};

/// Of two ranks. Nothing is saved within a phase, so that one that is killed begins again.
v1::JobSpec TinyPhases(const Cluster& cluster, int64_t layers) {
  v1::JobSpec spec = cluster.TinyJob("");
  spec.mutable_model()->set_layers(layers);
  spec.mutable_model()->set_heads(4);
  spec.mutable_schedule()->set_kind("constant");
  spec.mutable_schedule()->set_warmup_steps(0);
  spec.mutable_checkpoint()->set_every_steps(1000);
  return spec;
}

v1::PhaseSpec& AddSizedPhase(v1::JobSpec& spec, int64_t steps, int64_t layers, int64_t width,
                             const std::string& method = "none") {
  v1::PhaseSpec& phase = *spec.add_phases();
  phase.set_steps(steps);
  phase.set_layers(layers);
  phase.set_width(width);
  phase.mutable_growth()->set_method(method);
  return phase;
}

std::string ReadBytes(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// The newest state of the training in a run folder, weights and all: its files by name.
std::map<std::string, std::string> State(const std::string& folder) {
  std::vector<std::filesystem::path> steps;
  for (const auto& step : std::filesystem::directory_iterator(folder + "/checkpoints")) {
    steps.push_back(step.path());
  }
  std::map<std::string, std::string> files;
  if (steps.empty()) return files;
  const std::filesystem::path newest = *std::max_element(steps.begin(), steps.end());
  for (const auto& file : std::filesystem::directory_iterator(newest)) {
    if (file.path().extension() != ".safetensors") continue;
    files[newest.filename().string() + "/" + file.path().filename().string()] =
        ReadBytes(file.path());
  }
  return files;
}

/// A part of a job that has a loss curve of its own.
struct Part {
  std::string folder;  ///< In that of the job.
  int64_t steps;
};

/// Runs a job twice, with `kills` and without, and compares what all of its parts come to.
void ExpectKillsChangeNothing(v1::JobSpec (*make)(const Cluster&), const std::vector<Kill>& kills,
                              const std::vector<Part>& parts) {
  const MortalTrainer trainer(kills);
  Cluster cluster({.ranks = trainer.environment()});
  v1::JobSpec spec = make(cluster);
  spec.set_name("alone");
  const std::string alone = cluster.Submit(spec);
  spec.set_name("killed");
  const std::string killed = cluster.Submit(spec);
  EXPECT_EQ(cluster.Await(alone, v1::SUCCEEDED, seconds(90)).attempts_size(), spec.phases_size());
  const v1::Job job = cluster.Await(killed, v1::SUCCEEDED, seconds(90));
  ASSERT_EQ(job.attempts_size(), spec.phases_size() + std::ssize(kills));
  for (int i = 0; i < job.attempts_size(); ++i) {
    const bool dies = std::any_of(kills.begin(), kills.end(),
                                  [&](const Kill& kill) { return kill.attempt == i + 1; });
    EXPECT_EQ(job.attempts(i).reason() == v1::COMPLETED, !dies) << "attempt " << i + 1;
  }
  int64_t steps = 0;
  for (const v1::PhaseSpec& phase : spec.phases()) steps += phase.steps();
  EXPECT_EQ(job.progress().step(), steps);
  for (const auto& [folder, count] : parts) {
    SCOPED_TRACE(folder);
    const std::string curve = ReadBytes(cluster.RunDir(killed) + folder + "/loss.jsonl");
    EXPECT_EQ(std::count(curve.begin(), curve.end(), '\n'), count) << "each step is there once";
    EXPECT_EQ(curve, ReadBytes(cluster.RunDir(alone) + folder + "/loss.jsonl"));
    const auto state = State(cluster.RunDir(killed) + folder);
    EXPECT_FALSE(state.empty());
    EXPECT_TRUE(state == State(cluster.RunDir(alone) + folder)) << "other bits at the end";
  }
}

TEST(PhaseKills, InEachGrownPhaseBeforeItsFirstCheckpoint) {
  ExpectKillsChangeNothing(
      [](const Cluster& cluster) {
        v1::JobSpec spec = TinyPhases(cluster, 4);
        AddSizedPhase(spec, 3, 4, 32);
        AddSizedPhase(spec, 4, 2, 16, "coalesce");
        AddSizedPhase(spec, 5, 1, 8, "coalesce");
        AddSizedPhase(spec, 4, 2, 16, "decoalesce");
        AddSizedPhase(spec, 5, 4, 32, "decoalesce");
        return spec;
      },
      // Right after the growth, or two steps later.
      {{2, "trainer.before_step=crash@1"},
       {4, "trainer.before_step=crash@3"},
       {6, "trainer.before_step=crash@1"},
       {8, "trainer.before_step=crash@3"}},
      {{"/phase-1", 3}, {"/phase-2", 4}, {"/phase-3", 5}, {"/phase-4", 4}, {"", 5}});
}

TEST(PhaseKills, WhereAPhaseEndsAndWhileAGrowthOperatorIsLearned) {
  ExpectKillsChangeNothing(
      [](const Cluster& cluster) {
        v1::JobSpec spec = TinyPhases(cluster, 2);
        AddSizedPhase(spec, 3, 1, 16);
        AddSizedPhase(spec, 4, 2, 32, "ligo").mutable_growth()->set_fit_steps(4);
        return spec;
      },
      {{1, "trainer.after_phase=crash@1"},
       {3, "trainer.before_fit_step=crash@3"},
       {4, "trainer.after_phase=crash@1"}},
      {{"/phase-1", 3}, {"", 4}});
}

TEST(PhaseKills, BetweenASearchAndTheChosenPart) {
  ExpectKillsChangeNothing(
      [](const Cluster& cluster) {
        v1::JobSpec spec = TinyPhases(cluster, 4);
        v1::PhaseSearchSpec& search = *AddSizedPhase(spec, 8, 3, 32).mutable_search();
        search.set_steps(4);
        for (const int64_t layers : {1, 2, 3}) search.add_layers(layers);
        AddSizedPhase(spec, 4, 4, 32, "stack");
        return spec;
      },
      // Before the first step of the chosen part, after the four of the search; then, with the
      // search done, before its third one.
      {{1, "trainer.before_step=crash@5"}, {2, "trainer.before_step=crash@3"}},
      {{"/phase-1/search", 4}, {"/phase-1", 4}, {"", 4}});
}

}  // namespace
}  // namespace weft::testing
