#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env.h"
#include "common/json.h"
#include "common/rng.h"
#include "common/spec/attempt_spec.h"
#include "common/spec/spec_json.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/engine/comm/hash_store.h"
#include "worker/trainer/control.h"

namespace weft::trainer {
namespace {

using testing::HasSubstr;

/// A weft-trainer process and the daemon's end of its control channel.
class Rank {
 public:
  Rank(const std::string& spec_path, const std::string& failpoints, bool with_control) {
    int fds[2] = {-1, -1};
    if (with_control && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
      ADD_FAILURE() << "socketpair";
    }
    pid_ = fork();
    if (pid_ == 0) {
      setenv("WEFT_FAILPOINTS", failpoints.c_str(), 1);
      setenv("WEFT_LOG", "error", 1);
      setenv("OMP_NUM_THREADS", "1", 1);
      const std::string binary = std::string(WEFT_BINARY_DIR) + "/weft-trainer";
      if (with_control) {
        dup2(fds[1], 3);
        fcntl(3, F_SETFD, 0);
        execl(binary.c_str(), "weft-trainer", "--spec", spec_path.c_str(), "--control-fd", "3",
              nullptr);
      } else {
        execl(binary.c_str(), "weft-trainer", "--spec", spec_path.c_str(), nullptr);
      }
      _exit(127);
    }
    control_ = fds[0];
    if (fds[1] >= 0) close(fds[1]);
  }
  ~Rank() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    CloseControl();
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  /// The next message, or nothing at the end of file.
  std::optional<RankMessage> Next() {
    size_t end = 0;
    while ((end = pending_.find('\n')) == std::string::npos) {
      pollfd wait{control_, POLLIN, 0};
      if (poll(&wait, 1, 60000) != 1) {
        ADD_FAILURE() << "silent for a minute";
        return std::nullopt;
      }
      char buffer[4096];
      ssize_t got = read(control_, buffer, sizeof(buffer));
      if (got <= 0) return std::nullopt;
      pending_.append(buffer, static_cast<size_t>(got));
    }
    Result<RankMessage> message = ParseRankMessage(std::string_view(pending_).substr(0, end));
    EXPECT_TRUE(message.ok()) << message.status().message();
    pending_.erase(0, end + 1);
    if (!message.ok()) return std::nullopt;
    return *message;
  }

  /// Reads up to the next message of this kind.
  template <class Message>
  std::optional<Message> Await() {
    while (std::optional<RankMessage> message = Next()) {
      if (auto* found = std::get_if<Message>(&*message)) return *found;
    }
    return std::nullopt;
  }

  void Send(const DaemonMessage& message) {
    const std::string line = ToLine(message) + "\n";
    EXPECT_EQ(write(control_, line.data(), line.size()), static_cast<ssize_t>(line.size()));
  }
  void CloseControl() {
    if (control_ >= 0) close(control_);
    control_ = -1;
  }
  void Signal(int number) { kill(pid_, number); }

  /// Exit code, or minus the signal.
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  int control_ = -1;
  std::string pending_;
};

class TrainerProcessTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "weft_trainer_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    // Sentences of a few words: enough regularity to learn something from.
    PhiloxStream random({1, 0, 0});
    const char* words[] = {"the", "cat", "sees", "a", "dog", "and", "runs", "home"};
    std::string text;
    for (int i = 0; i < 4000; ++i) {
      text += words[random.Below(8)];
      text += random.Below(6) == 0 ? ".\n" : " ";
    }
    ASSERT_TRUE(WriteFileAtomic(env_, root_ + "/text.txt", text).ok());
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  AttemptSpec Spec(const std::string& run) const {
    AttemptSpec spec;
    spec.job_id = "j-" + run;
    spec.epoch = 1;
    spec.host = "127.0.0.1";
    spec.run_dir = root_ + "/" + run;
    spec.cache_dir = root_ + "/cache";
    JobSpec& job = spec.job;
    job.name = "tiny";
    job.model.layers = 1;
    job.model.width = 32;
    job.model.heads = 2;
    job.model.context = 16;
    job.model.dropout = 0.1;
    job.data.train = {root_ + "/text.txt"};
    job.data.tokenizer.vocab_size = 280;
    job.train.steps = 12;
    job.train.global_batch = 4;
    job.train.precision = "fp32";
    job.train.eval_every_steps = 5;
    job.train.eval_sequences = 8;
    job.schedule.warmup_steps = 2;
    job.checkpoint.every_steps = 4;
    job.checkpoint.keep_last = 2;
    spec.plan.precision = "fp32";
    spec.plan.micro_batch = 2;
    spec.plan.accumulation_steps = 2;
    return spec;
  }

  std::unique_ptr<Rank> Start(const AttemptSpec& spec, const std::string& failpoints = "",
                              bool with_control = false) {
    std::string path = root_ + "/spec-" + spec.job_id + "-" + std::to_string(spec.epoch) + "-" +
                       std::to_string(spec.rank) + ".json";
    EXPECT_TRUE(WriteFileAtomic(env_, path, ToJson(spec).dump()).ok());
    return std::make_unique<Rank>(path, failpoints, with_control);
  }

  std::string Curve(const AttemptSpec& spec) {
    return *ReadFile(env_, spec.run_dir + "/loss.jsonl");
  }
  std::vector<double> Losses(const AttemptSpec& spec) {
    std::vector<double> losses;
    std::istringstream lines(Curve(spec));
    for (std::string line; std::getline(lines, line);) {
      losses.push_back((*ParseJson(line))["loss"].get<double>());
    }
    return losses;
  }
  std::string FinalState(const AttemptSpec& spec) {
    return *ReadFile(env_, engine::CheckpointPath(spec.run_dir, spec.job.train.steps) +
                               "/state-00000-of-00001.safetensors");
  }

  Env& env_ = Env::Posix();
  std::string root_;
};

TEST_F(TrainerProcessTest, AKilledRunResumesToTheSameBits) {
  const AttemptSpec undisturbed = Spec("undisturbed");
  ASSERT_EQ(Start(undisturbed)->Wait(), kExitDone);
  const std::vector<double> losses = Losses(undisturbed);
  ASSERT_EQ(losses.size(), 12u);
  EXPECT_LT(losses.back(), losses.front()) << "it learns";
  const Json summary = *ParseJson(*ReadFile(env_, undisturbed.run_dir + "/summary.json"));
  EXPECT_EQ(summary["steps"], 12);
  EXPECT_GT(summary["validation_loss_nats"].get<double>(), 0);
  EXPECT_GT(summary["unigram_entropy_nats"].get<double>(), 0);

  // Where a killed run resumes depends on how far its writer had come; at most where it was.
  const std::pair<const char*, int64_t> crashes[] = {{"trainer.before_step=crash@7", 4},
                                                     {"checkpoint.after_shards=crash@2", 8},
                                                     {"checkpoint.after_manifest=crash@2", 8},
                                                     {"checkpoint.after_publish=crash@2", 12},
                                                     {"checkpoint.before_write=crash@1", 0}};
  int number = 0;
  for (const auto& [failpoint, latest] : crashes) {
    AttemptSpec spec = Spec("killed" + std::to_string(++number));
    ASSERT_EQ(Start(spec, failpoint)->Wait(), -SIGKILL) << failpoint;
    spec.epoch = 2;
    auto rank = Start(spec, "", true);
    auto started = rank->Await<StartedMessage>();
    ASSERT_TRUE(started.has_value());
    EXPECT_LE(started->step, latest) << failpoint;
    EXPECT_EQ(started->step % 4, 0) << failpoint;
    auto finished = rank->Await<FinishedMessage>();
    ASSERT_TRUE(finished.has_value());
    EXPECT_EQ(rank->Wait(), kExitDone);
    EXPECT_EQ(Curve(spec), Curve(undisturbed)) << failpoint;
    EXPECT_EQ(FinalState(spec), FinalState(undisturbed)) << failpoint;
  }
}

TEST_F(TrainerProcessTest, AStopSavesTheStepAndTheNextAttemptGoesOn) {
  const AttemptSpec undisturbed = Spec("undisturbed");
  ASSERT_EQ(Start(undisturbed)->Wait(), kExitDone);
  for (bool by_signal : {false, true}) {
    AttemptSpec spec = Spec(by_signal ? "signal" : "message");
    auto rank = Start(spec, "trainer.before_step=sleep:50", true);
    EXPECT_EQ(rank->Await<HelloMessage>()->epoch, 1);
    ASSERT_TRUE(rank->Await<ProgressMessage>().has_value());
    if (by_signal) {
      rank->Signal(SIGTERM);
    } else {
      rank->Send(StopMessage{});
    }
    auto stopped = rank->Await<StoppedMessage>();
    ASSERT_TRUE(stopped.has_value());
    EXPECT_EQ(rank->Wait(), kExitDone);
    EXPECT_LT(stopped->step, 12);
    EXPECT_EQ(stopped->checkpoint_path, engine::CheckpointPath(spec.run_dir, stopped->step));
    EXPECT_TRUE(engine::VerifyCheckpoint(env_, stopped->checkpoint_path).ok());
    spec.epoch = 2;
    ASSERT_EQ(Start(spec)->Wait(), kExitDone);
    EXPECT_EQ(Curve(spec), Curve(undisturbed));
  }
}

TEST_F(TrainerProcessTest, ARankWithoutItsDaemonLeavesAtOnce) {
  auto rank = Start(Spec("orphan"), "trainer.before_step=sleep:200", true);
  ASSERT_TRUE(rank->Await<ProgressMessage>().has_value());
  const auto start = std::chrono::steady_clock::now();
  rank->CloseControl();
  EXPECT_EQ(rank->Wait(), kExitOrphaned);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST_F(TrainerProcessTest, TwoRanksTrainAsOne) {
  const AttemptSpec one = Spec("one");
  ASSERT_EQ(Start(one)->Wait(), kExitDone);
  AttemptSpec two = Spec("two");
  two.world_size = 2;
  two.plan.mesh.data = 2;
  two.plan.accumulation_steps = 1;
  two.plan.bucket_bytes = 4096;
  auto first = Start(two);
  two.rank = 1;
  auto second = Start(two);
  ASSERT_EQ(first->Wait(), kExitDone);
  ASSERT_EQ(second->Wait(), kExitDone);
  const std::vector<double> expected = Losses(one);
  const std::vector<double> got = Losses(two);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-5) << i;
}

/// The daemon's part of the rendezvous, until every rank trains.
void ServeStore(std::vector<std::unique_ptr<Rank>>& ranks) {
  engine::HashStore store;
  std::vector<std::thread> threads;
  for (std::unique_ptr<Rank>& rank : ranks) {
    threads.emplace_back([&store, &rank] {
      while (std::optional<RankMessage> message = rank->Next()) {
        ASSERT_FALSE(std::holds_alternative<FailedMessage>(*message)) << ToLine(*message);
        if (std::holds_alternative<StartedMessage>(*message)) return;
        if (auto* set = std::get_if<StoreSetMessage>(&*message)) {
          ASSERT_TRUE(store.Set(set->key, set->value_hex).ok());
          rank->Send(StoreReplyMessage{set->request_id, "", ""});
        } else if (auto* get = std::get_if<StoreGetMessage>(&*message)) {
          Result<std::string> value = store.Get(get->key, std::chrono::seconds(30));
          ASSERT_TRUE(value.ok()) << value.status().message();
          rank->Send(StoreReplyMessage{get->request_id, "", *value});
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(TrainerProcessTest, WhenOneRankDiesTheOtherLeavesForARetryAndTheJobResumes) {
  std::vector<std::unique_ptr<Rank>> ranks;
  AttemptSpec spec = Spec("pair");
  spec.world_size = 2;
  spec.plan.mesh.data = 2;
  spec.plan.accumulation_steps = 1;
  for (spec.rank = 0; spec.rank < 2; ++spec.rank) {
    ranks.push_back(Start(spec, spec.rank == 1 ? "trainer.before_step=crash@7" : "", true));
  }
  ServeStore(ranks);
  EXPECT_EQ(ranks[1]->Wait(), -SIGKILL);
  auto failed = ranks[0]->Await<FailedMessage>();
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->code, "UNAVAILABLE");
  EXPECT_EQ(ranks[0]->Wait(), kExitRetry);
  ranks.clear();

  spec.epoch = 2;
  for (spec.rank = 0; spec.rank < 2; ++spec.rank) ranks.push_back(Start(spec, "", true));
  ServeStore(ranks);
  EXPECT_TRUE(ranks[0]->Await<FinishedMessage>().has_value());
  EXPECT_EQ(ranks[0]->Wait(), kExitDone);
  EXPECT_EQ(ranks[1]->Wait(), kExitDone);
  EXPECT_EQ(Losses(spec).size(), 12u);
}

TEST_F(TrainerProcessTest, WhatTheUserGotWrongIsNotRetried) {
  auto expect_user_error = [&](AttemptSpec spec, const std::string& text) {
    auto rank = Start(spec, "", true);
    auto failed = rank->Await<FailedMessage>();
    ASSERT_TRUE(failed.has_value());
    EXPECT_EQ(failed->code, "INVALID");
    EXPECT_THAT(failed->message, HasSubstr(text));
    EXPECT_EQ(rank->Wait(), kExitUserError);
  };
  AttemptSpec no_file = Spec("no_file");
  no_file.job.data.train = {root_ + "/absent.txt"};
  expect_user_error(no_file, "absent.txt");
  AttemptSpec small_vocabulary = Spec("small_vocabulary");
  small_vocabulary.job.model.vocab_size = 100;
  expect_user_error(small_vocabulary, "model.vocab_size");
  AttemptSpec bad_plan = Spec("bad_plan");
  bad_plan.plan.micro_batch = 3;
  expect_user_error(bad_plan, "micro_batch");

  ASSERT_TRUE(WriteFileAtomic(env_, root_ + "/broken.json", "{\"job_id\": 3").ok());
  EXPECT_EQ(Rank(root_ + "/broken.json", "", false).Wait(), kExitUsage);
  EXPECT_EQ(Rank(root_ + "/absent.json", "", false).Wait(), kExitUsage);
}

TEST_F(TrainerProcessTest, ADamagedCheckpointIsPassedOverAndAReplacedAttemptRefused) {
  const AttemptSpec undisturbed = Spec("undisturbed");
  ASSERT_EQ(Start(undisturbed)->Wait(), kExitDone);
  AttemptSpec spec = Spec("damaged");
  std::string newest;
  for (spec.epoch = 1; spec.epoch <= 2; ++spec.epoch) {  // stopped twice: two checkpoints
    auto rank = Start(spec, "trainer.before_step=sleep:50", true);
    ASSERT_TRUE(rank->Await<ProgressMessage>().has_value());
    rank->Send(StopMessage{});
    auto stopped = rank->Await<StoppedMessage>();
    ASSERT_TRUE(stopped.has_value());
    newest = stopped->checkpoint_path;
    ASSERT_EQ(rank->Wait(), kExitDone);
  }
  const std::string shard = newest + "/state-00000-of-00001.safetensors";
  std::string bytes = *ReadFile(env_, shard);
  bytes[bytes.size() / 2] ^= 1;
  ASSERT_TRUE(WriteFileAtomic(env_, shard, bytes).ok());

  spec.epoch = 3;
  auto rank = Start(spec, "", true);
  auto event = rank->Await<EventMessage>();
  ASSERT_TRUE(event.has_value());
  EXPECT_THAT(event->text, HasSubstr(shard));
  EXPECT_TRUE(rank->Await<FinishedMessage>().has_value());
  EXPECT_EQ(rank->Wait(), kExitDone);
  EXPECT_EQ(Curve(spec), Curve(undisturbed));
  EXPECT_EQ(FinalState(spec), FinalState(undisturbed));

  spec.epoch = 2;
  auto zombie = Start(spec, "", true);
  auto failed = zombie->Await<FailedMessage>();
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->code, "CONFLICT");
  EXPECT_EQ(zombie->Wait(), kExitRetry);
}

}  // namespace
}  // namespace weft::trainer
