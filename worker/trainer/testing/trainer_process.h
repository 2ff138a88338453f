#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

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

/// A weft-trainer process and the daemon's end of its control channel.
class Rank {
 public:
  /// `address_space_bytes`: RLIMIT_AS of the process; 0: none.
  Rank(const std::string& spec_path, const std::string& failpoints, bool with_control,
       rlim_t address_space_bytes = 0) {
    int fds[2] = {-1, -1};
    if (with_control && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
      ADD_FAILURE() << "socketpair";
    }
    pid_ = fork();
    if (pid_ == 0) {
      setenv("WEFT_FAILPOINTS", failpoints.c_str(), 1);
      setenv("WEFT_LOG", "error", 1);
      setenv("OMP_NUM_THREADS", "1", 1);
      if (address_space_bytes > 0) {
        const rlimit limit{address_space_bytes, address_space_bytes};
        setrlimit(RLIMIT_AS, &limit);
      }
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

/// The daemon's part of the rendezvous: until every rank trains, or with `observe` until every one
/// has ended. That is given each message with the number of its rank, by a thread for each rank.
inline void ServeStore(const std::vector<std::unique_ptr<Rank>>& ranks,
                       const std::function<void(size_t, const RankMessage&)>& observe = {}) {
  engine::HashStore store;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&store, &observe, i, rank = ranks[i].get()] {
      while (std::optional<RankMessage> message = rank->Next()) {
        ASSERT_FALSE(std::holds_alternative<FailedMessage>(*message)) << ToLine(*message);
        if (observe) observe(i, *message);
        if (!observe && std::holds_alternative<StartedMessage>(*message)) return;
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

/// Runs rank processes in a folder of its own.
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
    job.model.attention_dropout = 0.1;
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
                              bool with_control = false, rlim_t address_space_bytes = 0) {
    std::string path = root_ + "/spec-" + spec.job_id + "-" + std::to_string(spec.epoch) + "-" +
                       std::to_string(spec.rank) + ".json";
    EXPECT_TRUE(WriteFileAtomic(env_, path, ToJson(spec).dump()).ok());
    return std::make_unique<Rank>(path, failpoints, with_control, address_space_bytes);
  }

  std::string Curve(const AttemptSpec& spec) {
    return *ReadFile(env_, spec.run_dir + "/loss.jsonl");
  }
  std::vector<double> Losses(const AttemptSpec& spec) {
    std::vector<double> losses;
    std::istringstream lines(Curve(spec));
    for (std::string line; std::getline(lines, line);) {
      const Json loss = (*ParseJson(line))["loss"];
      losses.push_back(loss.is_null() ? std::nan("") : loss.get<double>());
    }
    return losses;
  }
  std::string FinalState(const AttemptSpec& spec) {
    return *ReadFile(env_, engine::CheckpointPath(spec.run_dir, spec.job.train.steps) +
                               "/state-00000-of-00001.safetensors");
  }

  /// Runs a rank that must fail, and returns what it said.
  FailedMessage Fail(const AttemptSpec& spec, ExitCode exit_code, rlim_t address_space_bytes = 0) {
    auto rank = Start(spec, "", true, address_space_bytes);
    std::optional<FailedMessage> failed = rank->Await<FailedMessage>();
    EXPECT_EQ(rank->Wait(), exit_code);
    EXPECT_TRUE(failed.has_value());
    return failed.value_or(FailedMessage());
  }
  /// What is in the job's folder of checkpoints.
  std::vector<std::string> Checkpoints(const AttemptSpec& spec) {
    const std::string folder = engine::CheckpointsFolder(spec.run_dir);
    if (!env_.FileExists(folder)) return {};
    return *env_.ListDir(folder);
  }

  Env& env_ = Env::Posix();
  std::string root_;
};

}  // namespace weft::trainer
