// The coordinator is killed while it deletes a job with its run folder.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "tests/chaos/failpoints.h"
#include "tests/framework/cluster.h"

namespace weft::testing {
namespace {

using std::chrono::seconds;

grpc::StatusCode DeleteWithFolder(Cluster& cluster, const std::string& id) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience * seconds(10));
  v1::DeleteJobRequest request;
  request.set_id(id);
  request.set_delete_run_dir(true);
  v1::DeleteJobResponse response;
  return cluster.api().DeleteJob(&context, request, &response).error_code();
}

TEST(ChaosOfTheCoordinatorsDeletions, AreFinishedByTheNextOneOrWereNotBegun) {
  for (const std::string& point : FailpointsOf("coordinator.folder.")) {
    SCOPED_TRACE(point);
    Cluster cluster({.workers = 1, .coordinator = {{"WEFT_FAILPOINTS", point + "=crash"}}});
    const std::string id = cluster.Submit(cluster.TinyJob("deleted", 6, 1));
    cluster.Await(id, v1::SUCCEEDED);
    ASSERT_TRUE(std::filesystem::exists(cluster.RunDir(id)));
    EXPECT_NE(DeleteWithFolder(cluster, id), grpc::StatusCode::OK);
    ASSERT_TRUE(cluster.coordinator().WaitForEnd(seconds(20))) << cluster.LogTails();
    cluster.StartCoordinator();
    if (point.ends_with(".before_look")) {
      EXPECT_EQ(cluster.Get(id).state(), v1::SUCCEEDED);
      EXPECT_TRUE(std::filesystem::exists(cluster.RunDir(id)));
      EXPECT_EQ(DeleteWithFolder(cluster, id), grpc::StatusCode::OK) << cluster.LogTails();
    } else {
      EXPECT_EQ(DeleteWithFolder(cluster, id), grpc::StatusCode::NOT_FOUND);
    }
    EXPECT_TRUE(
        Eventually([&] { return !std::filesystem::exists(cluster.RunDir(id)); }, seconds(10)))
        << cluster.LogTails();
  }
}

}  // namespace
}  // namespace weft::testing
