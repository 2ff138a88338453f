// The disk of the coordinator fails: it says so, answers what it can read, forgets nothing that it
// acknowledged, and goes on by itself when the disk is well again.
#include <filesystem>
#include <fstream>
#include <set>

#include "tests/chaos/chaos.h"

namespace weft::testing {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

class ChaosOfTheDisk : public ::testing::TestWithParam<const char*> {};

TEST_P(ChaosOfTheDisk, AcknowledgesNothingThatItCannotKeep) {
  const std::string control = ::testing::TempDir() + "weft_io_fault";
  std::filesystem::remove(control);
  const Environment faults = {{"LD_PRELOAD", WEFT_IO_FAULTS},
                              {"WEFT_IO_FAULT_PATH", "/coordinator/weft.db"},
                              {"WEFT_IO_FAULT_CONTROL", control}};
  Cluster cluster({.workers = 0, .coordinator = faults});
  const v1::JobSpec spec = cluster.TinyJob("disk", kSteps);
  std::set<std::string> acknowledged;
  int requests = 0;
  const auto submit = [&] {
    v1::SubmitJobResponse response;
    const grpc::Status status =
        cluster.TrySubmit(spec, "request-" + std::to_string(++requests), &response);
    if (status.ok()) acknowledged.insert(response.job().id());
    return status;
  };
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(submit().ok());

  std::ofstream(control) << GetParam();
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(submit().ok()) << "nothing can be kept";
  EXPECT_EQ(cluster.Get(*acknowledged.begin()).state(), v1::QUEUED) << "reading goes on";
  EXPECT_TRUE(cluster.coordinator().Alive());

  std::filesystem::remove(control);
  const auto begin = steady_clock::now();
  EXPECT_TRUE(Eventually([&] { return submit().ok(); }, seconds(10))) << cluster.LogTails();
  const std::chrono::duration<double> took = steady_clock::now() - begin;
  RecordProperty("recovery_seconds", std::to_string(took.count()));

  // What it said survives its death, which the failed writes must not have spoilt.
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(submit().ok());
  cluster.coordinator().Kill();
  cluster.StartCoordinator();
  grpc::ClientContext context;
  v1::ListJobsRequest request;
  request.set_page_size(1000);
  v1::ListJobsResponse response;
  ASSERT_TRUE(cluster.api().ListJobs(&context, request, &response).ok());
  std::set<std::string> stored;
  for (const v1::Job& job : response.jobs()) stored.insert(job.id());
  int lost = 0;
  for (const std::string& id : acknowledged) lost += stored.contains(id) ? 0 : 1;
  EXPECT_EQ(lost, 0);
  RecordProperty("lost", lost);
}

INSTANTIATE_TEST_SUITE_P(Faults, ChaosOfTheDisk,
                         ::testing::Values("write ENOSPC", "write EIO", "sync EIO"),
                         [](const auto& fault) {
                           std::string name = fault.param;
                           name[name.find(' ')] = '_';
                           return name;
                         });

}  // namespace
}  // namespace weft::testing
