// For tests of weft-coordinator as a process.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "common/env.h"
#include "common/json.h"
#include "weft/v1/coordinator.grpc.pb.h"

namespace weft::coordinator {

/// A child whose output comes through a pipe.
class Process {
 public:
  /// With `file_bytes` no file of it can grow beyond that, as on a full disk.
  explicit Process(std::vector<std::string> args, const std::string& failpoints = "",
                   std::optional<rlim_t> file_bytes = std::nullopt) {
    args.insert(args.begin(), std::string(WEFT_BINARY_DIR) + "/weft-coordinator");
    int fds[2];
    EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(fds[1], 1);
      dup2(fds[1], 2);
      if (file_bytes) {
        const rlimit limit{*file_bytes, RLIM_INFINITY};
        setrlimit(RLIMIT_FSIZE, &limit);
      }
      setenv("WEFT_FAILPOINTS", failpoints.c_str(), 1);
      std::vector<char*> argv;
      for (auto& arg : args) argv.push_back(arg.data());
      argv.push_back(nullptr);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(fds[1]);
    fd_ = fds[0];
  }
  ~Process() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(fd_);
  }

  /// Reads until the text has been said; false when the output ends before.
  bool AwaitOutput(const std::string& text) {
    char buffer[4096];
    while (output_.find(text) == std::string::npos) {
      ssize_t n = read(fd_, buffer, sizeof(buffer));
      if (n <= 0) return false;
      output_.append(buffer, static_cast<size_t>(n));
    }
    return true;
  }
  /// Waits for the end: the exit code, or minus the signal.
  int AwaitExit() {
    AwaitOutput("\x01 never said");
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  void Signal(int number) const { kill(pid_, number); }
  pid_t pid() const { return pid_; }
  const std::string& output() const { return output_; }

 private:
  pid_t pid_ = -1;
  int fd_ = -1;
  std::string output_;
};

class MainTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::temp_directory_path() /
           ("weft-main-" + std::to_string(getpid()) + "-" +
            testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::vector<std::string> Args(const std::string& data,
                                const std::string& listen = "127.0.0.1:0") {
    return {"--listen",   listen,      "--metrics-listen", "127.0.0.1:0",
            "--data-dir", dir_ / data, "--run-root",       dir_ / "runs"};
  }
  std::string Address(const std::string& data) {
    auto text = ReadFile(Env::Posix(), dir_ / data / "coordinator.json");
    EXPECT_TRUE(text.ok()) << text.status().message();
    return ParseJson(*text)->at("address").get<std::string>();
  }
  grpc::Status Submit(const std::string& address, const std::string& request_id,
                      v1::SubmitJobResponse& response) {
    auto stub =
        v1::Coordinator::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    v1::SubmitJobRequest request;
    request.mutable_spec()->set_name("job");
    request.mutable_spec()->mutable_data()->add_train("/data/a.txt");
    request.set_client_request_id(request_id);
    return stub->SubmitJob(&context, request, &response);
  }

  std::filesystem::path dir_;
};

}  // namespace weft::coordinator
