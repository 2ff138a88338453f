// weft-coordinator as a process: start, refuse, crash, restart.
#include "coordinator/api/process_testing.h"

namespace weft::coordinator {
namespace {

using ::testing::HasSubstr;

TEST_F(MainTest, ServesOnAFreePortAndEndsOnSigterm) {
  Process process(Args("a"));
  ASSERT_TRUE(process.AwaitOutput(" ready on 127.0.0.1:")) << process.output();
  v1::SubmitJobResponse response;
  grpc::Status status = Submit(Address("a"), "one", response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.job().run_dir(), (dir_ / "runs" / response.job().id()).string());
  process.Signal(SIGTERM);
  EXPECT_EQ(process.AwaitExit(), 0) << process.output();
}

TEST_F(MainTest, SaysWhatIsWrongAndExitsWithItsCode) {
  Process first(Args("a"));
  ASSERT_TRUE(first.AwaitOutput(" ready on ")) << first.output();
  struct Case {
    std::vector<std::string> args;
    int code;
    std::string says;
  };
  std::ofstream(dir_ / "file") << "x";
  std::vector<std::string> short_lease = Args("b");
  short_lease.insert(short_lease.end(), {"--lease-seconds", "1", "--heartbeat-seconds", "1"});
  for (auto& [args, code, says] :
       std::vector<Case>{{Args("a"), 6, "another weft-coordinator uses the data folder"},
                         {Args("b", Address("a")), 6, "cannot listen on"},
                         {Args("file/below"), 2, "must be writable"},
                         {short_lease, 2, "at least twice"},
                         {{"--listen", "127.0.0.1:0"}, 2, "--data-dir"},
                         {{"--version"}, 0, "weft-coordinator "}}) {
    Process process(args);
    EXPECT_EQ(process.AwaitExit(), code) << process.output();
    EXPECT_THAT(process.output(), HasSubstr(says));
  }
}

TEST_F(MainTest, ACrashAtAnyPointOfASubmissionLeavesOneJobAfterTheRetry) {
  for (const char* point : {"coordinator.submit.before_commit", "coordinator.store.before_commit",
                            "coordinator.store.after_commit", "coordinator.submit.after_commit"}) {
    std::string data = std::string("d-") + point;
    v1::SubmitJobResponse response;
    {
      Process process(Args(data), std::string(point) + "=crash");
      ASSERT_TRUE(process.AwaitOutput(" ready on ")) << process.output();
      EXPECT_FALSE(Submit(Address(data), "the-one", response).ok()) << point;
      EXPECT_EQ(process.AwaitExit(), -SIGKILL);
    }
    Process process(Args(data));
    ASSERT_TRUE(process.AwaitOutput(" ready on ")) << process.output();
    ASSERT_TRUE(Submit(Address(data), "the-one", response).ok());
    auto stub = v1::Coordinator::NewStub(
        grpc::CreateChannel(Address(data), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    v1::ListJobsResponse list;
    ASSERT_TRUE(stub->ListJobs(&context, {}, &list).ok());
    ASSERT_EQ(list.jobs_size(), 1) << point;
    EXPECT_EQ(list.jobs(0).id(), response.job().id());
  }
}

}  // namespace
}  // namespace weft::coordinator
