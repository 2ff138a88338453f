// Jobs with adapters that go on from mesh to mesh, as an elastic job does after each restart: what
// comes of them is what comes of one rank.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/env.h"
#include "common/formats/safetensors.h"
#include "tests/matrix/combinations.h"
#include "tests/matrix/techniques.h"
#include "tests/matrix/training.h"
#include "worker/engine/checkpoint/catalog.h"

namespace weft::testing {
namespace {

constexpr int64_t kStepsOnMesh = 2;

/// How a part of a training is spread over ranks.
struct MeshShape {
  int64_t ranks = 1;
  int64_t zero_stage = 0;
  int64_t tensor = 1;
  int64_t pipeline = 1;
};

/// A tensor of a checkpoint.
struct SavedTensor {
  SafetensorsType type = SafetensorsType::kF32;
  std::string bytes;

  std::vector<float> Floats() const {
    std::vector<float> floats(bytes.size() / sizeof(float));
    std::memcpy(floats.data(), bytes.data(), bytes.size());
    return floats;
  }
};

struct MovedTraining {
  std::vector<double> losses;
  std::map<std::string, SavedTensor> state;  ///< In the last checkpoint, of one rank.
};

class MovedAdapters : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "weft_moved_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { EXPECT_TRUE(Env::Posix().RemoveTree(root_).ok()); }

  /// Products of 64 inputs, or 32 on one of two tensor-parallel ranks.
  static JobSpec Job(const std::string& family) {
    JobSpec job = JobOf(Combination(Axes().size(), 0));
    job.model.family = family;
    job.model.width = 64;
    job.model.mlp_width = 128;
    job.model.peft.target_modules = {"all-linear"};
    job.optimizer.learning_rate = 1e-2;
    return job;
  }

  /// The training on these meshes one after the other, kStepsOnMesh on each. The last has one rank,
  /// so that its checkpoint has every tensor whole.
  MovedTraining TrainOn(JobSpec job, const std::vector<MeshShape>& meshes) {
    const std::string run = root_ + "/" + std::to_string(++runs_);
    MovedTraining moved;
    int64_t last_step = 0;
    for (const MeshShape& mesh : meshes) {
      job.resources.ranks = mesh.ranks;
      job.resources.zero_stage = mesh.zero_stage;
      job.resources.tensor_parallel = mesh.tensor;
      job.resources.pipeline_parallel = mesh.pipeline;
      const auto training = Train(job, run, last_step += kStepsOnMesh);
      EXPECT_TRUE(training.ok()) << training.status().message();
      if (!training.ok()) return moved;
      moved.losses.insert(moved.losses.end(), training->losses.begin(), training->losses.end());
    }
    moved.state = StateIn(run);
    return moved;
  }

  /// The same steps on one rank, which stops as often.
  MovedTraining TrainOnOneRank(const JobSpec& job, size_t stops) {
    return TrainOn(job, std::vector<MeshShape>(stops));
  }

  std::string root_;
  int runs_ = 0;

 private:
  static std::map<std::string, SavedTensor> StateIn(const std::string& run) {
    std::map<std::string, SavedTensor> state;
    const auto saved = engine::LatestVerified(Env::Posix(), run);
    EXPECT_TRUE(saved.ok() && saved->latest);
    if (!saved.ok() || !saved->latest) return state;
    EXPECT_EQ(saved->latest->manifest.files.size(), 1u);
    for (const engine::CheckpointFile& file : saved->latest->manifest.files) {
      const std::string path = JoinPath(saved->latest->path, file.name);
      const auto tensors = SafetensorsFile::Open(Env::Posix(), path);
      EXPECT_TRUE(tensors.ok()) << tensors.status().message();
      if (!tensors.ok()) continue;
      for (const SafetensorsView& tensor : tensors->tensors()) {
        const auto* const bytes = reinterpret_cast<const char*>(tensor.bytes.data());
        state[tensor.name] = {tensor.type, std::string(bytes, tensor.bytes.size())};
      }
    }
    return state;
  }
};

void ExpectLosses(const MovedTraining& moved, const MovedTraining& whole) {
  ASSERT_EQ(moved.losses.size(), whole.losses.size());
  for (size_t step = 0; step < whole.losses.size(); ++step) {
    EXPECT_NEAR(moved.losses[step], whole.losses[step], 1e-4) << "step " << step;
  }
}

/// The tensors of both are the same ones: numbers of f32 except for roundings, which the first
/// updates of Adam enlarge, and all others bit for bit.
void ExpectState(const MovedTraining& moved, const MovedTraining& whole) {
  constexpr double kMost = 2e-2;  // of the largest number of a tensor
  ASSERT_GT(whole.state.size(), 0u);
  ASSERT_EQ(moved.state.size(), whole.state.size());
  for (const auto& [name, expected] : whole.state) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(moved.state.contains(name));
    const SavedTensor& own = moved.state.at(name);
    ASSERT_EQ(own.type, expected.type);
    ASSERT_EQ(own.bytes.size(), expected.bytes.size());
    if (expected.type != SafetensorsType::kF32) {
      EXPECT_TRUE(own.bytes == expected.bytes);
      continue;
    }
    const std::vector<float> values = own.Floats(), truth = expected.Floats();
    double largest = 0, difference = 0;
    for (size_t i = 0; i < truth.size(); ++i) {
      largest = std::max<double>(largest, std::fabs(truth[i]));
      difference = std::max<double>(difference, std::fabs(values[i] - truth[i]));
    }
    EXPECT_LE(difference, kMost * largest);
  }
}

bool IsKept(const std::string& name) {
  return name.ends_with("/kept");
}

/// Ranks that the AdaLoRA of a training has left out.
int64_t LeftOut(const MovedTraining& training) {
  int64_t left_out = 0;
  for (const auto& [name, tensor] : training.state) {
    if (IsKept(name)) left_out += std::count(tensor.bytes.begin(), tensor.bytes.end(), '\0');
  }
  return left_out;
}

/// A training of ten steps that chooses ranks in some steps from the second to the seventh one,
/// for the last time then. Between two choices the scores alone are carried on, and at the end the
/// choice.
JobSpec AdaLoraJob(JobSpec job, int64_t steps_between) {
  job.model.peft.method = "adalora";
  job.model.peft.adalora.init_r = 4;
  job.model.peft.adalora.target_r = 2;
  job.model.peft.adalora.tinit = 1;
  job.model.peft.adalora.tfinal = 3;
  job.model.peft.adalora.delta_t = steps_between;
  return job;
}

TEST_F(MovedAdapters, RanksOfAdaLoraAreThoseThatOneRankChooses) {
  const std::vector<std::vector<MeshShape>> ways = {
      {{.ranks = 2}, {.ranks = 4, .zero_stage = 3}, {.ranks = 2, .tensor = 2}, {.ranks = 4}, {}},
      {{.ranks = 2, .pipeline = 2},
       {.ranks = 2, .zero_stage = 2},
       {},
       {.ranks = 4, .zero_stage = 3, .tensor = 2},
       {}},
      {{}, {}, {.ranks = 4, .tensor = 2, .pipeline = 2}, {.ranks = 2, .pipeline = 2}, {}}};
  for (const auto& [family, steps_between] : {std::pair("gpt2", 1), std::pair("llama", 3)}) {
    const JobSpec job = AdaLoraJob(Job(family), steps_between);
    const MovedTraining whole = TrainOnOneRank(job, ways.front().size());
    EXPECT_GT(LeftOut(whole), 0);
    for (size_t way = 0; way < ways.size(); ++way) {
      SCOPED_TRACE(std::string(family) + ", way " + std::to_string(way));
      const MovedTraining moved = TrainOn(job, ways[way]);
      ExpectLosses(moved, whole);
      ExpectState(moved, whole);
      for (const auto& [name, expected] : whole.state) {
        if (!name.ends_with(".lora_E")) continue;
        const std::vector<float> own = moved.state.at(name).Floats(), truth = expected.Floats();
        for (size_t i = 0; i < truth.size(); ++i) {
          EXPECT_EQ(own[i] == 0, truth[i] == 0) << name << " " << i;
        }
      }
    }
  }
}

// A mean that began anew after two of four steps would lack two fifths.
TEST_F(MovedAdapters, ScoresOfAdaLoraAreInTheCheckpoint) {
  const JobSpec job = AdaLoraJob(Job("llama"), /*steps_between=*/1);
  const MovedTraining whole = TrainOnOneRank(job, 2);
  const MovedTraining moved = TrainOn(job, {{.ranks = 4, .zero_stage = 2}, {}});
  int64_t scores = 0, kept = 0;
  for (const auto& [name, tensor] : whole.state) {
    kept += IsKept(name) ? 1 : 0;
    if (!name.ends_with("/sensitivity") && !name.ends_with("/uncertainty")) continue;
    ++scores;
    const std::vector<float> floats = tensor.Floats();
    EXPECT_GT(*std::max_element(floats.begin(), floats.end()), 0) << name;
  }
  EXPECT_GT(kept, 0);
  EXPECT_EQ(scores, 2 * 3 * kept) << "two means of A, B and E of each adapter";
  ExpectState(moved, whole);
}

// Words that are in no folder are in checkpoints.
TEST_F(MovedAdapters, WeightsInFourBitsAreTheSameBitsOnAnyMesh) {
  struct Case {
    std::string family;
    std::string name;
    void (*change)(ModelSpec& model);
  };
  const Case cases[] = {{"gpt2", "lora", [](ModelSpec&) {}},
                        {"llama", "rsLoRA, scales in 8 bits",
                         [](ModelSpec& model) {
                           model.peft.use_rslora = true;
                           model.weight_quantization.double_quantization = true;
                         }},
                        {"llama", "DoRA", [](ModelSpec& model) { model.peft.use_dora = true; }},
                        {"gpt2", "PiSSA", [](ModelSpec& model) { model.peft.init = "pissa"; }},
                        {"llama", "adalora", [](ModelSpec& model) {
                           model.peft.rank = PeftSpec().rank;
                           model.peft.method = "adalora";
                           model.peft.adalora.init_r = 4;
                           model.peft.adalora.target_r = 2;
                           model.peft.adalora.tfinal = 3;
                         }}};
  const std::vector<std::vector<MeshShape>> ways = {
      {{}, {.ranks = 2, .tensor = 2}, {.ranks = 4, .zero_stage = 3}, {.ranks = 2}, {}},
      {{.ranks = 4, .zero_stage = 3, .tensor = 2},
       {.ranks = 2, .pipeline = 2},
       {.ranks = 4, .zero_stage = 2},
       {.ranks = 4, .tensor = 2, .pipeline = 2},
       {}}};
  for (const Case& c : cases) {
    JobSpec job = Job(c.family);
    job.model.peft.method = "lora";
    job.model.peft.rank = 4;
    job.model.weight_quantization = {.type = "nf4", .block_size = 32, .double_quantization = false};
    c.change(job.model);
    const MovedTraining whole = TrainOnOneRank(job, ways.front().size());
    for (size_t way = 0; way < ways.size(); ++way) {
      SCOPED_TRACE(c.family + ", " + c.name + ", way " + std::to_string(way));
      const MovedTraining moved = TrainOn(job, ways[way]);
      ExpectLosses(moved, whole);
      ExpectState(moved, whole);
      int64_t words = 0;
      for (const auto& [name, expected] : whole.state) {
        const bool codes = whole.state.contains(name + ".scales");
        if (!codes && !name.ends_with(".scales") && !name.ends_with(".scales_of_scales") &&
            !name.ends_with(".mean_scale")) {
          continue;
        }
        words += codes ? 1 : 0;
        EXPECT_TRUE(moved.state.at(name).bytes == expected.bytes) << name;
      }
      EXPECT_GT(words, 0);
    }
  }
}

}  // namespace
}  // namespace weft::testing
