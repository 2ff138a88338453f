// A rank whose network learns what to add to the logits of a frozen one.
#include <gmock/gmock.h>

#include <csignal>
#include <filesystem>
#include <fstream>

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

TEST_F(AddedNetworkTest, TwoRanksTrainAsOneDoes) {
  const AttemptSpec one = Value("one", folder_);
  ASSERT_EQ(Start(one)->Wait(), kExitDone);
  const auto expect_same = [&](AttemptSpec two) {
    auto first = Start(two);
    two.rank = 1;
    auto second = Start(two);
    ASSERT_EQ(first->Wait(), kExitDone);
    ASSERT_EQ(second->Wait(), kExitDone);
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
