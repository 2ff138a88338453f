// A rank that starts from a Hugging Face folder. The folder and what PyTorch makes of it were
// recorded by tests/parity/make_fixtures.py.

#include <gmock/gmock.h>

#include <filesystem>

#include "common/formats/huggingface.h"
#include "common/formats/safetensors.h"
#include "worker/engine/checkpoint/manifest.h"
#include "worker/trainer/testing/trainer_process.h"

namespace weft::trainer {
namespace {

using testing::HasSubstr;

class TrainerImportTest : public TrainerProcessTest {
 protected:
  const std::string folder_ = WEFT_SOURCE_DIR "/tests/parity/testdata/gpt2/imported";

  /// Its first step sees every sequence of the recorded text once.
  AttemptSpec Import(const std::string& run, const std::string& folder) const {
    AttemptSpec spec = Spec(run);
    JobSpec& job = spec.job;
    job.model = ModelSpec();
    job.model.import_path = folder;
    job.model.dropout = 0;
    job.data.train = {folder_ + "/text.txt"};
    job.data.validation_fraction = 0;
    job.data.tokenizer.path = folder_;
    job.train.steps = 3;
    job.train.global_batch = 6;
    job.schedule.warmup_steps = 1;
    spec.plan.micro_batch = 3;
    return spec;
  }

  std::string CopyOfTheFolder(const std::string& name) {
    const std::string copy = root_ + "/" + name;
    std::filesystem::copy(folder_, copy);
    std::filesystem::permissions(copy + "/model.safetensors", std::filesystem::perms::owner_all);
    return copy;
  }
};

TEST_F(TrainerImportTest, TheFirstLossIsThatOfPyTorch) {
  const Json recorded = *ParseJson(*ReadFile(env_, folder_ + "/loss.json"));
  const AttemptSpec fp32 = Import("fp32", folder_);
  ASSERT_EQ(Start(fp32)->Wait(), kExitDone);
  EXPECT_NEAR(Losses(fp32).at(0), recorded["loss"].get<double>(), 1e-5);
  EXPECT_LT(Losses(fp32).at(2), Losses(fp32).at(0)) << "and it trains";

  AttemptSpec bf16 = Import("bf16", folder_);
  bf16.job.train.precision = bf16.plan.precision = "bf16";
  ASSERT_EQ(Start(bf16)->Wait(), kExitDone);
  EXPECT_NEAR(Losses(bf16).at(0), recorded["loss"].get<double>(), 2e-2);
}

TEST_F(TrainerImportTest, TheLossOnAnswersIsThatOfPyTorchsLabels) {
  const std::string chats = WEFT_SOURCE_DIR "/tests/parity/testdata/gpt2/chats";
  const Json recorded = *ParseJson(*ReadFile(env_, chats + "/loss.json"));
  for (const char* batching : {"pad_dynamic", "pad_fixed"}) {
    AttemptSpec spec = Import(batching, folder_);
    DataSpec& data = spec.job.data;
    data.train = {chats + "/chats.jsonl"};
    data.format = "chat";
    data.chat_template = recorded["template"];
    data.loss_on = "completions";
    data.batching = batching;
    ASSERT_EQ(Start(spec)->Wait(), kExitDone);
    EXPECT_NEAR(Losses(spec).at(0), recorded["loss"].get<double>(), 1e-5) << batching;
    EXPECT_LT(Losses(spec).at(2), Losses(spec).at(0)) << batching;
  }
}

TEST_F(TrainerImportTest, SizesThatCannotBeSpreadAreRefusedOnceTheyAreKnown) {
  AttemptSpec odd = Import("odd", folder_);  // of three positions a sequence, on two ranks
  odd.job.resources.ranks = odd.world_size = odd.plan.mesh.tensor = 2;
  odd.job.resources.tensor_parallel = 2;
  odd.job.resources.sequence_parallel = odd.plan.sequence_parallel = true;
  odd.job.train.sequence_length = 3;
  const FailedMessage failed = Fail(odd, kExitUserError);
  EXPECT_EQ(failed.code, "INVALID");
  EXPECT_THAT(failed.message, HasSubstr("sequences of a length that is a multiple of 2"));
}

TEST_F(TrainerImportTest, ARouterThatCannotLearnIsReported) {
  for (const bool normalize : {true, false}) {
    AttemptSpec spec = Spec(normalize ? "whole" : "by_probability");
    ModelSpec& model = spec.job.model;
    model.family = "llama";
    model.experts = 4;
    model.experts_per_token = 1;
    model.normalize_expert_weights = normalize;
    spec.job.train.steps = 2;
    auto rank = Start(spec, "", true);
    bool warned = false;
    while (std::optional<RankMessage> message = rank->Next()) {
      const auto* event = std::get_if<EventMessage>(&*message);
      warned = warned || (event != nullptr && event->level == "warning" &&
                          event->text.find("the router learns from") != std::string::npos);
    }
    EXPECT_EQ(rank->Wait(), kExitDone);
    EXPECT_EQ(warned, normalize);
  }
}

TEST_F(TrainerImportTest, ALaterAttemptResumesAndImportsNothing) {
  const std::string copy = CopyOfTheFolder("copy");
  const AttemptSpec undisturbed = Import("undisturbed", folder_);
  ASSERT_EQ(Start(undisturbed)->Wait(), kExitDone);
  AttemptSpec spec = Import("killed", copy);
  spec.job.checkpoint.every_steps = 1;
  ASSERT_EQ(Start(spec, "checkpoint.after_verify=crash@1")->Wait(), -SIGKILL);
  ASSERT_TRUE(env_.RemoveFile(copy + "/model.safetensors").ok());
  spec.epoch = 2;
  ASSERT_EQ(Start(spec)->Wait(), kExitDone);
  EXPECT_EQ(Curve(spec), Curve(undisturbed));
}

TEST_F(TrainerImportTest, SnapshotsLeaveOutTheFrozenNetworkOfTheFolder) {
  const auto pair = [&](const std::string& name) {
    AttemptSpec spec = Import(name, folder_);
    spec.job.model.peft.method = "lora";
    spec.job.model.peft.target_modules = {"all-linear"};
    spec.job.train.steps = 5;
    spec.job.checkpoint.every_steps = 0;
    spec.job.checkpoint.keep_last = 100;
    spec.world_size = 2;
    spec.plan.mesh.data = 2;
    spec.plan.zero_stage = spec.job.resources.zero_stage = 1;
    spec.plan.accumulation_steps = 1;
    spec.plan.rank_workers = {"a", "b"};
    return spec;
  };
  const auto run = [&](AttemptSpec spec, const std::string& crash) {
    std::vector<std::unique_ptr<Rank>> ranks;
    for (spec.rank = 0; spec.rank < 2; ++spec.rank) {
      const std::string memory = root_ + "/memory-" + spec.job_id + std::to_string(spec.rank);
      std::filesystem::create_directories(memory);
      if (spec.job.checkpoint.peer_every_steps > 0) spec.memory_dir = memory;
      ranks.push_back(Start(spec, spec.rank == 1 ? crash : ""));
    }
    EXPECT_EQ(ranks[0]->Wait(), crash.empty() ? kExitDone : kExitRetry);
    EXPECT_EQ(ranks[1]->Wait(), crash.empty() ? kExitDone : -SIGKILL);
  };
  const AttemptSpec undisturbed = pair("undisturbed");
  run(undisturbed, "");
  AttemptSpec spec = pair("killed");
  spec.job.checkpoint.peer_every_steps = 1;
  run(spec, "trainer.before_step=crash@4");
  std::filesystem::remove_all(root_ + "/memory-" + spec.job_id + "1");
  spec.epoch = 2;
  run(spec, "");
  EXPECT_EQ(Curve(spec), Curve(undisturbed));
  const auto manifest = engine::ReadManifest(env_, engine::CheckpointPath(spec.run_dir, 3));
  ASSERT_TRUE(manifest.ok()) << manifest.status().message();
  EXPECT_THAT(manifest->base_tensors, testing::Contains("transformer.wte.weight"));
  for (const engine::CheckpointFile& file : manifest->files) {
    const std::string path = JoinPath(engine::CheckpointPath(spec.run_dir, 3), file.name);
    const auto tensors = SafetensorsFile::Open(env_, path);
    ASSERT_TRUE(tensors.ok()) << tensors.status().message();
    EXPECT_EQ(tensors->Find("transformer.wte.weight"), nullptr) << path;
  }
}

TEST_F(TrainerImportTest, WeightsThatCannotBeReadAreRefusedBeforeTheDataArePrepared) {
  const std::string copy = CopyOfTheFolder("pickle");
  std::filesystem::rename(copy + "/model.safetensors", copy + "/pytorch_model.bin");
  const FailedMessage failed = Fail(Import("pickled", copy), kExitUserError);
  EXPECT_EQ(failed.code, "INVALID");
  EXPECT_THAT(failed.message, HasSubstr("PyTorch pickles (pytorch_model.bin)"));
  EXPECT_FALSE(env_.FileExists(root_ + "/cache"));
}

TEST_F(TrainerImportTest, AFolderThatDoesNotFitIsRefusedBeforeTraining) {
  auto refuse = [&](const AttemptSpec& spec) {
    const FailedMessage failed = Fail(spec, kExitUserError);
    EXPECT_EQ(failed.code, "INVALID");
    EXPECT_FALSE(failed.numerics);
    EXPECT_TRUE(Checkpoints(spec).empty());
    return failed.message;
  };
  // 67 rows of embedding, a tokenizer of 286 entries.
  AttemptSpec small = Import("small", WEFT_SOURCE_DIR "/tests/parity/testdata/gpt2/start");
  EXPECT_THAT(refuse(small), AllOf(HasSubstr("tokenizer"), HasSubstr("67")));

  AttemptSpec absent = Import("absent", root_ + "/nowhere");
  EXPECT_THAT(refuse(absent), AllOf(HasSubstr("there is no folder"), HasSubstr("nowhere")));

  AttemptSpec long_sequences = Import("long", folder_);
  long_sequences.job.train.sequence_length = 17;
  EXPECT_THAT(refuse(long_sequences), HasSubstr("longer than the context 16"));

  const std::string infinite = CopyOfTheFolder("infinite");
  std::string bytes = *ReadFile(env_, infinite + "/model.safetensors");
  const std::string infinity = {0, 0, '\x80', '\x7f'};
  bytes.replace(bytes.size() - 4, 4, infinity);
  ASSERT_TRUE(WriteFileAtomic(env_, infinite + "/model.safetensors", bytes).ok());
  EXPECT_THAT(refuse(Import("infinite", infinite)), HasSubstr("NaN or infinite"));

  const std::string cut = CopyOfTheFolder("cut");
  bytes.resize(bytes.size() - 1000);
  ASSERT_TRUE(WriteFileAtomic(env_, cut + "/model.safetensors", bytes).ok());
  EXPECT_THAT(refuse(Import("cut", cut)), HasSubstr("cut/model.safetensors"));
}

}  // namespace
}  // namespace weft::trainer
