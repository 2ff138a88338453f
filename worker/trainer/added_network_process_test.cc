// A rank whose network learns what to add to the logits of a frozen one.
#include <gmock/gmock.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/engine/checkpoint/catalog.h"
#include "worker/trainer/testing/trainer_process.h"

namespace weft::trainer {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// After the second checkpoint, of step 8, is there.
constexpr char kDiesWithACheckpoint[] =
    "trainer.before_step=sleep:20,checkpoint.after_verify=crash@2";

class AddedNetworkTest : public TrainerProcessTest {
 protected:
  const std::string folder_ = WEFT_SOURCE_DIR "/tests/parity/testdata/gpt2/imported";

  std::string CopyOfTheBase() const {
    std::string copy = root_ + "/base";
    std::filesystem::remove_all(copy);
    std::filesystem::copy(folder_, copy);
    std::filesystem::permissions(copy + "/model.safetensors", std::filesystem::perms::owner_all);
    return copy;
  }

  AttemptSpec Value(const std::string& run, const std::string& base) const {
    AttemptSpec spec = Spec(run);
    JobSpec& job = spec.job;
    job.model.family = "llama";
    job.model.dropout.reset();
    job.model.attention_dropout.reset();
    job.model.untied_classifier = true;
    job.data.tokenizer.path = folder_;
    job.train.value_learning.base.import_path = base;
    job.train.value_learning.logit_penalty = 0.01;
    return spec;
  }

  /// Trains as these ranks; their penalties of all steps.
  static std::vector<std::vector<double>> PenaltiesOf(
      const std::vector<std::unique_ptr<Rank>>& ranks) {
    std::vector<std::vector<double>> penalties(ranks.size());
    ServeStore(ranks, [&](size_t rank, const RankMessage& message) {
      const auto* step = std::get_if<ProgressMessage>(&message);
      if (step == nullptr) return;
      const auto found = step->technique_metrics.find("value_logit_penalty_nats");
      penalties[rank].push_back(found == step->technique_metrics.end() ? std::nan("")
                                                                       : found->second);
    });
    for (const std::unique_ptr<Rank>& rank : ranks) EXPECT_EQ(rank->Wait(), kExitDone);
    return penalties;
  }

  /// The last number of the base's weights becomes another one.
  static void ChangeWeights(const std::string& base) {
    const std::string path = base + "/model.safetensors";
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(-4, std::ios::end);
    const float number = 0.125f;
    file.write(reinterpret_cast<const char*>(&number), sizeof number);
  }
};

TEST_F(AddedNetworkTest, TrainsOnAndEndsAsIfNeverKilled) {
  const std::string base = CopyOfTheBase();
  const AttemptSpec undisturbed = Value("undisturbed", base);
  ASSERT_EQ(Start(undisturbed)->Wait(), kExitDone);
  const std::vector<double> losses = Losses(undisturbed);
  EXPECT_LT(losses.back(), losses.front());
  AttemptSpec killed = Value("killed", base);
  ASSERT_EQ(Start(killed, kDiesWithACheckpoint)->Wait(), -SIGKILL);
  killed.epoch = 2;
  ASSERT_EQ(Start(killed)->Wait(), kExitDone);
  EXPECT_EQ(Curve(killed), Curve(undisturbed));
  EXPECT_EQ(FinalState(killed), FinalState(undisturbed));
}

TEST_F(AddedNetworkTest, DoesNotGoOnWithAnotherNetwork) {
  const std::string base = CopyOfTheBase();
  AttemptSpec spec = Value("changed", base);
  ASSERT_EQ(Start(spec, kDiesWithACheckpoint)->Wait(), -SIGKILL);
  ChangeWeights(base);
  spec.epoch = 2;
  const FailedMessage failed = Fail(spec, kExitUserError);
  EXPECT_THAT(failed.message,
              HasSubstr("are no longer those that the checkpoint was trained with"));
}

TEST_F(AddedNetworkTest, LooksAtItsFolderEarlyAlsoWhenItResumes) {
  const std::string base = CopyOfTheBase();
  AttemptSpec spec = Value("cut", base);
  ASSERT_EQ(Start(spec, kDiesWithACheckpoint)->Wait(), -SIGKILL);
  const std::string weights = base + "/model.safetensors";
  std::filesystem::resize_file(weights, std::filesystem::file_size(weights) / 2);
  spec.epoch = 2;
  EXPECT_THAT(Fail(spec, kExitUserError).message,
              AllOf(HasSubstr("train.value_learning.base.import_path: "),
                    HasSubstr("copy or export the folder again")))
      << "what loads it later does not name the field";
}

// Sums of squares that ranks have parts of, or all of them the same, count once.
TEST_F(AddedNetworkTest, TwoRanksTrainAsOneDoes) {
  const AttemptSpec one = Value("one", folder_);
  std::vector<std::unique_ptr<Rank>> alone;
  alone.push_back(Start(one, "", true));
  const std::vector<double> penalties = PenaltiesOf(alone).front();
  ASSERT_EQ(std::ssize(penalties), one.job.train.steps);
  // A classifier of zeros has none in the first step.
  EXPECT_GT(penalties.back(), 0);
  const auto expect_same = [&](AttemptSpec two) {
    std::vector<std::unique_ptr<Rank>> ranks;
    for (two.rank = 0; two.rank < 2; ++two.rank) ranks.push_back(Start(two, "", true));
    for (const std::vector<double>& own : PenaltiesOf(ranks)) {
      ASSERT_EQ(own.size(), penalties.size());
      for (size_t step = 0; step < penalties.size(); ++step) {
        EXPECT_NEAR(own[step], penalties[step], 1e-4 * penalties[step]) << step;
      }
    }
    EXPECT_THAT(Losses(two), testing::Pointwise(testing::DoubleNear(1e-5), Losses(one)));
  };
  for (const int64_t zero_stage : {0, 1, 2, 3}) {
    SCOPED_TRACE("zero_stage " + std::to_string(zero_stage));
    AttemptSpec two = Value("two-" + std::to_string(zero_stage), folder_);
    two.world_size = two.job.resources.ranks = two.plan.mesh.data = 2;
    two.job.resources.zero_stage = two.plan.zero_stage = zero_stage;
    two.plan.accumulation_steps = 1;
    expect_same(two);
  }
  for (const bool sequence : {false, true}) {
    SCOPED_TRACE(sequence ? "tensor parallel with sequences" : "tensor parallel");
    AttemptSpec two = Value(sequence ? "sequence" : "tensor", folder_);
    two.world_size = two.job.resources.ranks = 2;
    two.job.resources.tensor_parallel = two.plan.mesh.tensor = 2;
    two.job.resources.sequence_parallel = two.plan.sequence_parallel = sequence;
    expect_same(two);
  }
  SCOPED_TRACE("grid");
  AttemptSpec grid = Value("grid", folder_);
  grid.world_size = grid.job.resources.ranks = 2;
  grid.job.resources.tensor_parallel = grid.plan.mesh.tensor = 2;
  grid.job.resources.tensor_rows = grid.plan.tensor_rows = 2;
  expect_same(grid);
}

TEST_F(AddedNetworkTest, RefusesFoldersThatDoNotFit) {
  AttemptSpec spec = Value("vocabulary", folder_);
  spec.job.model.vocab_size = 512;
  EXPECT_THAT(Fail(spec, kExitUserError).message, HasSubstr("and their logits are added"));

  spec = Value("context", folder_);
  spec.job.model.context = spec.job.train.sequence_length = 32;
  EXPECT_THAT(Fail(spec, kExitUserError).message,
              HasSubstr("train.sequence_length 32 is longer than the context 16 of "
                        "train.value_learning.base.import_path"));

  spec = Value("bert", WEFT_SOURCE_DIR "/tests/parity/testdata/bert_mlm/start");
  EXPECT_THAT(Fail(spec, kExitUserError).message,
              HasSubstr("which does not predict the next token"));

  spec = Value("nothing", root_ + "/nothing");
  EXPECT_THAT(Fail(spec, kExitUserError).message,
              HasSubstr("train.value_learning.base.import_path: "));

  const std::string base = CopyOfTheBase();
  std::filesystem::resize_file(base + "/model.safetensors",
                               std::filesystem::file_size(base + "/model.safetensors") / 2);
  spec = Value("truncated", base);
  EXPECT_THAT(Fail(spec, kExitUserError).message, HasSubstr("copy or export the folder again"));
}

}  // namespace
}  // namespace weft::trainer
