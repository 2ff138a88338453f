// What the coordinator forgets by itself, and how many questions it asks of its store for a list.
#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <thread>

#include "coordinator/service/testing.h"
#include "coordinator/store/forwarding_store.h"

namespace weft::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Counts the reads.
class CountingStore : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  int64_t reads() const { return reads_; }

 private:
  Store& Read() override {
    ++reads_;
    return ForwardingStore::Read();
  }

  std::atomic<int64_t> reads_ = 0;
};

class RetentionTest : public ServiceTest {
 protected:
  void SetUp() override {
    root_ = std::filesystem::temp_directory_path() / ("weft-retention-" + std::to_string(getpid()));
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
    options_ = ServiceOptions();
    options_.run_root = root_;
    options_.retention.run_folders = true;
    ServiceTest::SetUp();
  }
  void TearDown() override {
    ServiceTest::TearDown();
    std::filesystem::remove_all(root_);
  }
  std::string EndedJob() {
    const std::string id = Submit(1)->view.job.id;
    std::promise<Status> cancelled;
    service_->Cancel(id, [&](const Result<JobView>& view) { cancelled.set_value(view.status()); });
    EXPECT_TRUE(cancelled.get_future().get().ok());
    return id;
  }
  void PassHours(int hours) {
    clock_.Advance(std::chrono::hours(hours));
    service_->Wake();
  }
  bool IsGone(const std::string& id) {
    for (int i = 0; i < 2000; ++i) {
      if (service_->Get(id).status().code() == StatusCode::kNotFound) return true;
      // A sweep that was under way when the clock moved has seen the time before: the next one is
      // due.
      if (i % 100 == 99) PassHours(1);
      std::this_thread::sleep_for(milliseconds(1));
    }
    return false;
  }
  /// The events that say so, one a line.
  std::string DeletedEvents(const std::string& id) {
    std::string texts;
    const auto events = store_->ListEvents(id);
    for (const EventRecord& event : *events) {
      if (event.kind == "deleted") texts += event.text + "\n";
    }
    return texts;
  }
  Result<DeletedJob> Delete(const std::string& id, bool run_dir) {
    std::promise<Result<DeletedJob>> promise;
    service_->Delete(id, run_dir, [&](Result<DeletedJob> r) { promise.set_value(std::move(r)); });
    return promise.get_future().get();
  }
  /// An ended job with a checkpoint.
  std::string JobWithFolder() {
    const std::string id = EndedJob();
    std::filesystem::create_directories(root_ / id / "checkpoints/step-00000010");
    return id;
  }
  /// Waits until no folder is to be deleted any more.
  bool AllFoldersDeleted() {
    for (int i = 0; i < 2000; ++i) {
      if (store_->ListFolderDeletions()->empty()) return true;
      std::this_thread::sleep_for(milliseconds(1));
    }
    return false;
  }

  std::filesystem::path root_;
};

TEST_F(RetentionTest, AListIsOneQuestionWhateverTheNumberOfJobs) {
  for (int i = 0; i < 300; ++i) {
    JobRecord job;
    job.id = "j-" + std::to_string(i);
    job.spec.name = "test";
    job.spec.data.train = {std::string(50000, 'x')};
    job.state = JobState::kSucceeded;
    Transaction change;
    change.job = job;
    ASSERT_TRUE(CommitAndWait(*store_, change).ok());
  }
  CountingStore counted(*store_);
  Service service(counted, clock_, planner_, metrics_, ServiceOptions{});
  for (int64_t limit : {10, 300}) {
    const int64_t before = counted.reads();
    JobQuery query;
    query.limit = limit;
    auto page = service.List(query);
    ASSERT_TRUE(page.ok());
    EXPECT_EQ(std::ssize(page->jobs), limit);
    EXPECT_EQ(counted.reads() - before, 1);
  }
}

TEST_F(RetentionTest, OldJobsGoWithTheirFoldersAndExportsStay) {
  const std::string plain = JobWithFolder();
  const std::string exported = EndedJob();
  const std::string waiting = Submit(1)->view.job.id;
  std::filesystem::create_directories(root_ / exported / "hf");
  PassHours(89 * 24);
  PassHours(1);
  EXPECT_TRUE(service_->Get(plain).ok()) << "not yet";
  PassHours(2 * 24);
  EXPECT_TRUE(IsGone(plain));
  EXPECT_TRUE(IsGone(exported));
  EXPECT_TRUE(service_->Get(waiting).ok()) << "it has not ended";
  EXPECT_TRUE(AllFoldersDeleted());
  EXPECT_FALSE(std::filesystem::exists(root_ / plain));
  EXPECT_TRUE(std::filesystem::exists(root_ / exported / "hf"));
  const std::string folder = "its run folder " + (root_ / plain).string();
  EXPECT_EQ(DeletedEvents(plain),
            "by retention; " + folder + " is to be deleted\n" + folder + " is deleted\n");
  EXPECT_THAT(DeletedEvents(exported), HasSubstr("is kept, because it holds"));
}

TEST_F(RetentionTest, ARunFolderThatDoesNotAnswerHoldsUpNobodyElse) {
  const std::string id = JobWithFolder();
  auto worker = Attach("a");
  ASSERT_TRUE(SetFailpoints("coordinator.folder.before_look=sleep:3000").ok());
  std::future<Result<DeletedJob>> deleted =
      std::async(std::launch::async, [&] { return Delete(id, true); });
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < seconds(1)) {
    const int64_t sequence = ++heartbeats_;
    service_->Heartbeat(worker, sequence, {}, false);
    ASSERT_TRUE(worker->Saw("heartbeat " + std::to_string(sequence), seconds(1)));
    std::this_thread::sleep_for(milliseconds(50));
  }
  EXPECT_TRUE(deleted.get().ok());
  EXPECT_FALSE(std::filesystem::exists(root_ / id));
}

TEST_F(RetentionTest, ADeletionThatACrashInterruptedIsFinishedAtTheNextStart) {
  for (const char* point :
       {"coordinator.folder.before_delete", "coordinator.folder.after_delete"}) {
    SCOPED_TRACE(point);
    const std::string id = JobWithFolder();
    const bool before = std::string(point).ends_with("before_delete");
    ASSERT_TRUE(SetFailpoints(std::string(point) + "=error").ok());
    EXPECT_EQ(Delete(id, true).ok(), !before);
    EXPECT_TRUE(IsGone(id));
    service_.reset();
    EXPECT_EQ(std::filesystem::exists(root_ / id), before);
    EXPECT_EQ(store_->ListFolderDeletions()->size(), 1u);
    EXPECT_EQ(DeletedEvents(id).find(" is deleted\n"), std::string::npos);
    ASSERT_TRUE(SetFailpoints("").ok());
    StartService();
    EXPECT_TRUE(AllFoldersDeleted());
    EXPECT_FALSE(std::filesystem::exists(root_ / id));
    EXPECT_THAT(DeletedEvents(id), HasSubstr(" is deleted\n"));
  }
}

TEST_F(RetentionTest, ADeletionThatFailsIsTriedAgainWithTheNextSweep) {
  const std::string id = JobWithFolder();
  ASSERT_TRUE(SetFailpoints("coordinator.folder.before_delete=error@1").ok());
  EXPECT_FALSE(Delete(id, true).ok());
  EXPECT_TRUE(std::filesystem::exists(root_ / id));
  PassHours(2);
  EXPECT_TRUE(AllFoldersDeleted());
  EXPECT_FALSE(std::filesystem::exists(root_ / id));
}

TEST_F(RetentionTest, OfManyEventsTheNewestStay) {
  options_.retention.events_per_job = 2;
  StartService();
  const std::string id = EndedJob();
  Transaction change;
  for (const char* text : {"one", "two", "three", "four"}) {
    change.events.push_back({id, 0, clock_.UnixSeconds(), "note", text});
  }
  ASSERT_TRUE(CommitAndWait(*store_, change).ok());
  const auto texts = [&] {
    std::vector<std::string> list;
    const auto events = store_->ListEvents(id);
    for (const EventRecord& event : *events) list.push_back(event.text);
    return list;
  };
  EXPECT_GT(texts().size(), 4u);
  for (int i = 0; i < 2000 && texts().size() > 2; ++i) {
    if (i % 100 == 0) PassHours(1);  // as in IsGone
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_THAT(texts(), ElementsAre("three", "four"));
  EXPECT_TRUE(service_->Get(id).ok()) << "the job stays";
}

TEST_F(RetentionTest, AUserLearnsWhyAFolderIsNotDeletedAndKeepsTheJob) {
  const std::string id = EndedJob();
  std::filesystem::create_directories(root_ / id / "hf");
  Result<DeletedJob> refused = Delete(id, true);
  EXPECT_EQ(refused.status().code(), StatusCode::kConflict);
  EXPECT_THAT(refused.status().message(), HasSubstr((root_ / id / "hf").string()));
  EXPECT_TRUE(service_->Get(id).ok());
  Result<DeletedJob> kept = Delete(id, false);
  ASSERT_TRUE(kept.ok());
  EXPECT_EQ(kept->kept_run_dir, (root_ / id).string());
  EXPECT_TRUE(IsGone(id));
}

TEST_F(RetentionTest, LostWorkersAreForgottenThoseWithRanksOrALinkAreNot) {
  auto gone = Attach("gone");
  auto here = Attach("here");
  service_->Detach(gone);
  Pass(20, {here});
  EXPECT_EQ(service_->Workers().size(), 2u);
  for (int hour = 0; hour < 26; ++hour) {
    PassHours(1);
    Pass(1, {here});
  }
  std::vector<std::string> known;
  for (int i = 0; i < 1000 && known.size() != 1; ++i) {
    known.clear();
    for (const WorkerView& worker : service_->Workers()) known.push_back(worker.profile.worker_id);
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_THAT(known, ElementsAre("here"));
}

}  // namespace
}  // namespace weft::coordinator
