// A rank that trains several adapters of one network, each on files of its own.

#include <gmock/gmock.h>

#include <csignal>
#include <map>

#include "common/model/technique_cost.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/trainer/testing/trainer_process.h"
#include "worker/trainer/trained_weights.h"

namespace weft::trainer {
namespace {

using testing::HasSubstr;

class JointJobsTest : public TrainerProcessTest {
 protected:
  /// Two adapters of a network of Hugging Face, of chats of different lengths, whose answers alone
  /// are targets.
  AttemptSpec Chats(const std::string& run) const {
    const std::string parity = WEFT_SOURCE_DIR "/tests/parity/testdata/gpt2/";
    AttemptSpec spec = Spec(run);
    JobSpec& job = spec.job;
    job.model = ModelSpec();
    job.model.import_path = parity + "imported";
    job.model.dropout = 0;
    job.model.peft.method = "lora";
    job.model.peft.target_modules = {"all-linear"};
    job.model.peft.adapters.resize(2);
    AdapterSpec& first = job.model.peft.adapters[0];
    first.name = "weaver";
    first.learning_rate = 2e-2;
    AdapterSpec& second = job.model.peft.adapters[1];
    second.name = "speller";
    second.train = {root_ + "/letters.jsonl"};
    second.validation = {root_ + "/more.jsonl"};
    job.data.train = {parity + "chats/chats.jsonl"};
    job.data.format = "chat";
    job.data.chat_template = (*ParseJson(*ReadFile(env_, parity + "chats/loss.json")))["template"];
    job.data.loss_on = "completions";
    job.data.batching = "pad_dynamic";
    job.data.validation_fraction = 0.2;
    job.data.tokenizer.path = job.model.import_path;
    job.optimizer.learning_rate = 1e-2;
    job.train.gradient_clip_norm = 0.5;
    return spec;
  }

  /// Chats in which the assistant says some of the letters that the user says.
  void WriteLetters(const std::string& name, uint64_t seed) const {
    PhiloxStream random({seed, 0, 0});
    std::string lines;
    for (int i = 0; i < 20; ++i) {
      std::string asked, said;
      for (uint64_t left = 1 + random.Below(6); left > 0; --left) {
        asked += static_cast<char>('a' + random.Below(26));
        if (left % 2 == 1) said += asked.back();
      }
      const Json user = {{"role", "user"}, {"content", asked}};
      const Json assistant = {{"role", "assistant"}, {"content", said}};
      lines += Json{{"messages", Json::array({user, assistant})}}.dump() + "\n";
    }
    ASSERT_TRUE(WriteFileAtomic(env_, root_ + "/" + name, lines).ok());
  }

  /// The parameters that the run has come to; of several jobs those of `part`.
  std::map<std::string, std::vector<float>> Trained(const AttemptSpec& spec,
                                                    std::optional<size_t> part) const {
    const std::string folder = engine::CheckpointPath(spec.run_dir, spec.job.train.steps);
    const auto manifest = engine::VerifyCheckpoint(env_, folder);
    EXPECT_TRUE(manifest.ok()) << manifest.status().message();
    const JobSpec job = part ? JointJobs(manifest->job)[*part] : manifest->job;
    engine::TinyRun run(job.model, engine::ModelOptionsOf(engine::TinyPlan("fp32")));
    const std::map<std::string, std::string> names =
        part ? NamesOfPart(manifest->job, *part) : std::map<std::string, std::string>();
    EXPECT_EQ(names.empty(), !part.has_value());
    const Status loaded =
        LoadTrainedWeights(env_, folder, *manifest, run.model->parameters(), names);
    EXPECT_TRUE(loaded.ok()) << loaded.message();
    std::map<std::string, std::vector<float>> values;
    const engine::ParameterSet& parameters = run.model->parameters();
    for (int64_t i = 0; i < parameters.size(); ++i) {
      values[parameters[i].name] = engine::ValuesOf(parameters.value(i));
    }
    return values;
  }
};

TEST_F(JointJobsTest, AdaptersOfPaddedChatsAreThoseOfJobsOfTheirOwn) {
  WriteLetters("letters.jsonl", 1);
  WriteLetters("more.jsonl", 2);
  const AttemptSpec joint = Chats("joint");
  auto rank = Start(joint, "", true);
  std::map<std::string, double> evaluated;
  int64_t steps = 0;
  while (std::optional<RankMessage> message = rank->Next()) {
    if (const auto* evaluation = std::get_if<EvaluationMessage>(&*message)) {
      evaluated = evaluation->technique_metrics;
    }
    if (const auto* progress = std::get_if<ProgressMessage>(&*message)) {
      ++steps;
      EXPECT_TRUE(progress->technique_metrics.contains("adapter_loss_nats/weaver"));
      EXPECT_TRUE(progress->technique_metrics.contains("adapter_gradient_norm/speller"));
    }
  }
  ASSERT_EQ(rank->Wait(), kExitDone);
  EXPECT_EQ(steps, joint.job.train.steps);
  const std::vector<JobSpec> jobs = JointJobs(joint.job);
  for (size_t part = 0; part < jobs.size(); ++part) {
    SCOPED_TRACE(jobs[part].name);
    AttemptSpec own = joint;
    own.job = jobs[part];
    own.job_id = "j-" + own.job.name;
    own.run_dir = root_ + "/" + own.job.name;
    own.plan.micro_batch /= 2;
    ASSERT_EQ(Start(own)->Wait(), kExitDone);
    const Json summary = *ParseJson(*ReadFile(env_, own.run_dir + "/summary.json"));
    ASSERT_TRUE(evaluated.contains("adapter_eval_loss_nats/" + own.job.name));
    EXPECT_NEAR(evaluated["adapter_eval_loss_nats/" + own.job.name],
                summary["validation_loss_nats"].get<double>(), 1e-4);
    const auto truth = Trained(own, std::nullopt), found = Trained(joint, part);
    ASSERT_EQ(found.size(), truth.size());
    for (const auto& [name, values] : truth) {
      ASSERT_TRUE(found.contains(name)) << name;
      const std::vector<float>& others = found.at(name);
      ASSERT_EQ(others.size(), values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_NEAR(others[i], values[i], 2e-4) << name << "[" << i << "]";
      }
    }
  }
}

TEST_F(JointJobsTest, AKilledRunResumesToTheSameBits) {
  WriteLetters("letters.jsonl", 1);
  WriteLetters("more.jsonl", 2);
  const AttemptSpec whole = Chats("whole");
  ASSERT_EQ(Start(whole)->Wait(), kExitDone);
  AttemptSpec killed = Chats("killed");
  ASSERT_EQ(Start(killed, "trainer.before_step=crash@7")->Wait(), -SIGKILL);
  ++killed.epoch;
  ASSERT_EQ(Start(killed)->Wait(), kExitDone);
  EXPECT_EQ(Curve(killed), Curve(whole));
  EXPECT_EQ(FinalState(killed), FinalState(whole));
}

TEST_F(JointJobsTest, DataOfDifferentTokenizersAreRefused) {
  WriteLetters("letters.jsonl", 1);
  AttemptSpec spec = Spec("tokenizers");
  spec.job.data.format = "text";
  spec.job.model.peft.method = "lora";
  spec.job.model.peft.adapters.resize(2);
  spec.job.model.peft.adapters[0].name = "words";
  spec.job.model.peft.adapters[1].name = "letters";
  spec.job.model.peft.adapters[1].train = {root_ + "/letters.jsonl"};
  EXPECT_THAT(Fail(spec, kExitUserError).message,
              HasSubstr("the data of letters have another tokenizer than those of words"));
}

}  // namespace
}  // namespace weft::trainer
