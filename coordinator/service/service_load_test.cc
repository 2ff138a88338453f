// Jobs that waited when the coordinator started, where the store cannot read all of them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <future>
#include <string>

#include "coordinator/service/testing.h"
#include "coordinator/store/sqlite_db.h"

namespace weft::coordinator {
namespace {

class ServiceLoadTest : public ServiceTest {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::temp_directory_path() / ("weft-load-" + std::to_string(getpid()));
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
    SqliteOptions sqlite;
    sqlite.path = dir_ / "weft.db";
    auto opened = SqliteStore::Open(sqlite);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    store_ = std::move(*opened);
    StartService();
  }
  void TearDown() override {
    ServiceTest::TearDown();
    store_.reset();
    std::filesystem::remove_all(dir_);
  }
  /// Behind the store's back: the spec of the job becomes `expression`.
  void SetSpec(const std::string& id, const std::string& expression) {
    auto db = SqliteDb::Open(dir_ / "weft.db");
    ASSERT_TRUE(db.ok()) << db.status().message();
    const Status status =
        (*db)->Exec("UPDATE jobs SET spec_json = " + expression + " WHERE id = '" + id + "'");
    ASSERT_TRUE(status.ok()) << status.message();
  }
  void Damage(const std::string& id) { SetSpec(id, "'x' || spec_json"); }
  void Repair(const std::string& id) { SetSpec(id, "substr(spec_json, 2)"); }
  std::string SubmitAfter(const std::string& before) {
    JobSpec spec;
    spec.name = "after";
    spec.data.train = {"/data/a"};
    spec.resources.ranks = 1;
    spec.scheduling.after = {before};
    std::promise<std::string> id;
    service_->Submit(spec, "after", [&](const Result<SubmitResult>& result) {
      id.set_value(result.ok() ? result->view.job.id : "");
    });
    return id.get_future().get();
  }

  std::filesystem::path dir_;
};

TEST_F(ServiceLoadTest, AQueuedJobThatCannotBeReadIsLoadedOnceItCan) {
  const std::string damaged = Submit(1)->view.job.id;
  const std::string sound = Submit(1)->view.job.id;
  service_.reset();
  Damage(damaged);
  StartService();
  auto a = Attach("a");
  Pass(3, {a});  // other workers might have come back
  ASSERT_TRUE(a->Saw("start " + sound + " 1")) << "others do not wait for it";
  auto b = Attach("b");
  EXPECT_FALSE(b->Saw("start " + damaged, milliseconds(30)));
  Repair(damaged);
  Pass(5, {a, b});
  EXPECT_TRUE(b->Saw("start " + damaged + " 1"));
}

TEST_F(ServiceLoadTest, AJobThatACallLoadsWaitsForThoseBeforeItAllTheSame) {
  const std::string first = Submit(64)->view.job.id;  // no worker has room for it
  const std::string second = SubmitAfter(first);
  service_.reset();
  Damage(second);
  StartService();
  Repair(second);
  std::promise<Status> updated;
  service_->Update(
      second, std::nullopt, 1,
      [&](const Result<JobView>& view) { updated.set_value(view.status()); }, nullptr);
  ASSERT_TRUE(updated.get_future().get().ok());
  auto a = Attach("a");
  Pass(3, {a});
  EXPECT_FALSE(a->Saw("start " + second, milliseconds(50)));
  EXPECT_EQ(service_->Get(second)->job.reason, Reason::kWaitingForJobs);
}

TEST_F(ServiceLoadTest, ACoordinatorDoesNotStartWithoutAJobThatHasRanks) {
  auto a = Attach("a");
  const std::string id = Submit(1)->view.job.id;
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  service_.reset();
  Damage(id);
  Service service(*store_, clock_, planner_, metrics_, options_);
  const Status status = service.Start();
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_NE(status.message().find("load job " + id), std::string::npos) << status.message();
}

}  // namespace
}  // namespace weft::coordinator
