#include "tests/framework/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

extern char** environ;

namespace weft::testing {

Process Process::Start(const std::vector<std::string>& arguments,
                       const std::map<std::string, std::string>& environment,
                       const std::string& log_path) {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) entries.emplace_back(*entry);
  for (const auto& [name, value] : environment) entries.push_back(name + "=" + value);
  std::vector<char*> argv, envp;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  for (std::string& entry : entries) envp.push_back(entry.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  int log = open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  EXPECT_GE(log, 0) << log_path;
  Process process;
  process.pid_ = fork();
  if (process.pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setsid();
    signal(SIGPIPE, SIG_DFL);  // the test ignores it, and a program inherits that
    dup2(log, 1);
    dup2(log, 2);
    execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  close(log);
  EXPECT_GT(process.pid_, 0) << arguments[0];
  return process;
}

Process::~Process() {
  Kill();
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), status_(other.status_) {}

Process& Process::operator=(Process&& other) noexcept {
  Kill();
  pid_ = std::exchange(other.pid_, -1);
  status_ = other.status_;
  return *this;
}

void Process::Signal(int signal_number) const {
  if (pid_ > 0 && !status_) kill(pid_, signal_number);
}

bool Process::Alive() {
  if (pid_ <= 0 || status_) return false;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
  return !status_;
}

std::optional<int> Process::WaitForEnd(std::chrono::milliseconds timeout) {
  Eventually([this] { return !Alive(); }, timeout);
  return status_;
}

void Process::Kill() {
  if (!Alive()) return;
  kill(pid_, SIGKILL);
  int status = 0;
  if (waitpid(pid_, &status, 0) == pid_) status_ = status;
}

}  // namespace weft::testing
