// Replaces weft-trainer in the tests of the daemon: does what the job's name says.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "common/env.h"
#include "common/json.h"
#include "common/spec/attempt_spec.h"
#include "common/spec/spec_json.h"
#include "worker/trainer/control.h"

namespace weft::trainer {
namespace {

class Fake {
 public:
  Fake(AttemptSpec spec, int control_fd) : spec_(std::move(spec)), fd_(control_fd) {}

  int Run() {
    const std::string& name = spec_.job.name;
    Send(HelloMessage{getpid(), spec_.rank, spec_.epoch, "fake"});
    if (name == "invalid") return Fail(InvalidError("data.train[0]: no such file"), kExitUserError);
    if (name == "silent") return 9;
    if (name == "store" || name == "meet") Meet();
    if (name == "chatty") {
      for (int i = 1; i <= 20000; ++i) std::cout << "line " << i << '\n';
      std::cout << std::flush;
    }
    for (const std::string& root : spec_.data_roots) std::cout << "reads below " << root << '\n';
    std::cout << "rank " << spec_.rank << " of " << spec_.world_size << std::endl;
    std::cerr << "a warning" << std::endl;
    Send(StartedMessage{});
    for (int step = 1; step <= 3; ++step) {
      ProgressMessage progress;
      progress.step = step;
      progress.steps_total = 3;
      progress.loss = 4.0 / step;
      progress.tokens = 100 * step;
      progress.step_seconds = 0.001;
      if (name == "paced") {
        progress.step_seconds = 4;
        progress.phases.communication_exposed = spec_.rank == 0 ? 2 : 0.5;
        progress.phases.checkpoint_stall = step == 2 ? 0.25 : 0;
        progress.phases.evaluation = step == 3 ? 1 : 0;
        progress.phases.data = spec_.rank == 0 ? 0.125 : 0.25;
      }
      Send(progress);
    }
    Send(CheckpointMessage{"verified", 3, spec_.run_dir + "/checkpoints/step-00000003", 10, 0, 0, 0,
                           ""});
    if (name == "crash" && spec_.rank == 1) raise(SIGSEGV);
    if (name == "crash" || name == "wait" || name == "meet") return AwaitStop();
    if (name == "paced") {
      AwaitStopMessage();
      Send(ActivityMessage{"saving", 1000 * (1 + spec_.rank)});
      usleep(1'200'000);
      return Stopped();
    }
    if (name == "stubborn") {
      signal(SIGTERM, SIG_IGN);
      while (true) pause();
    }
    FinishedMessage finished;
    finished.summary.job_id = spec_.job_id;
    finished.summary.steps = 3;
    Send(finished);
    return 0;
  }

 private:
  void Send(const RankMessage& message) {
    std::string line = ToLine(message) + "\n";
    if (write(fd_, line.data(), line.size()) < 0) _exit(kExitOrphaned);
  }

  DaemonMessage Receive() {
    std::string line;
    char c = 0;
    while (read(fd_, &c, 1) == 1) {
      if (c == '\n') return *ParseDaemonMessage(line);
      line += c;
    }
    _exit(kExitOrphaned);
  }

  int Fail(const Status& status, int code) {
    Send(ToFailed(status));
    return code;
  }

  int AwaitStop() {
    AwaitStopMessage();
    return Stopped();
  }

  void AwaitStopMessage() {
    while (true) {
      const DaemonMessage message = Receive();
      if (std::holds_alternative<StopMessage>(message)) break;
      // Longer recordings than 50 steps are not done before the stop.
      auto* profile = std::get_if<ProfileMessage>(&message);
      if (profile == nullptr || profile->steps > 50) continue;
      ProfiledMessage profiled;
      profiled.report.steps = profile->steps;
      Send(profiled);
    }
  }

  int Stopped() {
    Send(StoppedMessage{3, spec_.run_dir});
    return 0;
  }

  void Meet() {
    std::string mine = "rank" + std::to_string(spec_.rank);
    Send(StoreSetMessage{1, mine, ToHex("value of " + mine)});
    Receive();
    Send(StoreGetMessage{2, "rank" + std::to_string(1 - spec_.rank), 10});
    auto reply = std::get<StoreReplyMessage>(Receive());
    std::cout << "got " << reply.request_id << ": " << *FromHex(reply.value_hex) << reply.error
              << std::endl;
  }

  AttemptSpec spec_;
  int fd_;
};

}  // namespace
}  // namespace weft::trainer

int main(int argc, char** argv) {
  if (argc != 5) return weft::trainer::kExitUsage;
  auto text = weft::ReadFile(weft::Env::Posix(), argv[2]);
  if (!text.ok()) return weft::trainer::kExitUsage;
  auto spec = weft::FromJson<weft::AttemptSpec>(*weft::ParseJson(*text));
  if (!spec.ok()) return weft::trainer::kExitUsage;
  return weft::trainer::Fake(*spec, std::atoi(argv[4])).Run();
}
