#include "coordinator/store/sqlite_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "common/failpoint.h"

namespace weft::coordinator {
namespace {

using ::testing::HasSubstr;

class SqliteStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::temp_directory_path() /
           ("weft-sqlite-" + std::to_string(getpid()) + "-" +
            testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
    path_ = dir_ / "w.db";
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  static Transaction NewJob(const std::string& id) {
    Transaction t;
    t.job = JobRecord{};
    t.job->id = id;
    t.job->spec.name = "x";
    t.job->spec.data.train = {"a"};
    t.events.push_back({id, 0, 1, "submitted", ""});
    t.add_intents.push_back({"w", id, 1, IntentKind::kStart, false});
    return t;
  }
  Result<std::unique_ptr<SqliteStore>> Open() {
    SqliteOptions options;
    options.path = path_;
    return SqliteStore::Open(options);
  }

  std::filesystem::path dir_;
  std::string path_;
};

TEST_F(SqliteStoreTest, KilledDuringGroupCommitKeepsEveryAcknowledgedChangeWhole) {
  for (int delay_ms : {3, 17, 60, 150}) {
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
    int pipe_fds[2];
    ASSERT_EQ(pipe(pipe_fds), 0);
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto store = Open();
      if (!store.ok()) _exit(1);
      std::atomic<int> in_flight = 0;
      for (int i = 0;; ++i) {
        while (in_flight > 100) usleep(100);
        ++in_flight;
        (*store)->Commit(NewJob("j-" + std::to_string(i)),
                         [&, i, fd = pipe_fds[1]](const Result<CommitResult>& r) {
                           if (r.ok() && write(fd, &i, sizeof(i)) != sizeof(i)) _exit(1);
                           --in_flight;
                         });
      }
    }
    close(pipe_fds[1]);
    int first = -1;
    ASSERT_EQ(read(pipe_fds[0], &first, sizeof(first)), static_cast<ssize_t>(sizeof(first)));
    usleep(static_cast<useconds_t>(delay_ms) * 1000);
    kill(child, SIGKILL);
    std::set<std::string> acknowledged = {"j-" + std::to_string(first)};
    for (int i; read(pipe_fds[0], &i, sizeof(i)) == sizeof(i);) {
      acknowledged.insert("j-" + std::to_string(i));
    }
    waitpid(child, nullptr, 0);
    close(pipe_fds[0]);

    auto store = Open();
    ASSERT_TRUE(store.ok()) << store.status().message();
    auto ids = *(*store)->FindJobIds("", 1 << 20);
    std::set<std::string> stored(ids.begin(), ids.end());
    for (const auto& id : acknowledged) EXPECT_TRUE(stored.count(id)) << id << " was lost";
    std::set<std::string> intents;
    auto rows = *(*store)->ListIntents();
    for (const auto& intent : rows) intents.insert(intent.job_id);
    EXPECT_EQ(intents, stored) << "half a change is stored";
    for (const auto& id : stored) EXPECT_EQ((*store)->ListEvents(id)->size(), 1u);
  }
}

TEST_F(SqliteStoreTest, RefusesADatabaseOfANewerVersion) {
  ASSERT_TRUE(Open().ok());
  {
    auto db = SqliteDb::Open(path_);
    ASSERT_TRUE((*db)->Exec("PRAGMA user_version=999").ok());
  }
  auto store = Open();
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.status().code(), StatusCode::kConflict);
  EXPECT_THAT(store.status().message(), HasSubstr("schema version 999"));
}

TEST_F(SqliteStoreTest, MigrationsRunOnceInOrderAndLeaveACopy) {
  auto db = SqliteDb::Open(path_);
  ASSERT_TRUE(db.ok());
  const char* one[] = {"CREATE TABLE t (a)"};
  const char* two[] = {"CREATE TABLE t (a)", "ALTER TABLE t ADD COLUMN b"};
  const char* bad[] = {"CREATE TABLE t (a)", "ALTER TABLE t ADD COLUMN b",
                       "CREATE TABLE u (a); CREATE TABLE u (a)"};
  ASSERT_TRUE(Migrate(**db, path_, one).ok());
  ASSERT_TRUE(Migrate(**db, path_, one).ok());
  ASSERT_TRUE(Migrate(**db, path_, two).ok());
  EXPECT_TRUE(std::filesystem::exists(path_ + ".v1.backup"));
  EXPECT_FALSE(Migrate(**db, path_, bad).ok());
  EXPECT_FALSE((*db)->Exec("INSERT INTO u VALUES (1)").ok()) << "half a migration is stored";
  EXPECT_TRUE((*db)->Exec("INSERT INTO t (a, b) VALUES (1, 2)").ok());
}

TEST_F(SqliteStoreTest, HalfACopyOfAnEarlierMigrationIsNoHindrance) {
  auto db = SqliteDb::Open(path_);
  const char* one[] = {"CREATE TABLE t (a)"};
  const char* two[] = {"CREATE TABLE t (a)", "ALTER TABLE t ADD COLUMN b"};
  ASSERT_TRUE(Migrate(**db, path_, one).ok());
  std::ofstream(path_ + ".v1.backup.part") << "half";
  ASSERT_TRUE(Migrate(**db, path_, two).ok());
  EXPECT_TRUE(std::filesystem::exists(path_ + ".v1.backup"));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".v1.backup.part"));
}

TEST_F(SqliteStoreTest, JobsOfAnOlderSchemaAreListedWithTheirNumbers) {
  {
    auto db = SqliteDb::Open(path_);
    ASSERT_TRUE(Migrate(**db, path_, Migrations().first(2)).ok());
    ASSERT_TRUE((*db)
                    ->Exec("INSERT INTO jobs VALUES (1,'old',3,'RUNNING','REASON_UNSPECIFIED','',"
                           "1,NULL,NULL,1,'/r','','{}','{\"step\":7,\"steps_total\":10,"
                           "\"loss\":2.5,\"validation_loss\":2.0}',2,0)")
                    .ok());
  }
  auto store = Open();
  ASSERT_TRUE(store.ok()) << store.status().message();
  auto jobs = (*store)->ListJobs({});
  ASSERT_TRUE(jobs.ok()) << jobs.status().message();
  ASSERT_EQ(jobs->size(), 1u);
  EXPECT_EQ(jobs->front().progress.step, 7);
  EXPECT_EQ(jobs->front().progress.steps_total, 10);
  EXPECT_EQ(jobs->front().progress.loss, 2.5);
  EXPECT_EQ(jobs->front().progress.validation_loss, 2.0);
  EXPECT_EQ(jobs->front().queue, "default");
  EXPECT_EQ(jobs->front().priority, 0);
}

TEST_F(SqliteStoreTest, JobsOfAnOlderSchemaComeAfterTheSameOnes) {
  {
    auto db = SqliteDb::Open(path_);
    ASSERT_TRUE(Migrate(**db, path_, Migrations().first(2)).ok());
    const auto add = [&](const std::string& ordinal, const std::string& id,
                         const std::string& spec) {
      ASSERT_TRUE((*db)
                      ->Exec("INSERT INTO jobs VALUES (" + ordinal + ",'" + id +
                             "',1,'QUEUED','REASON_UNSPECIFIED','',1,NULL,NULL,1,'/r','','" + spec +
                             "','{}',0,0)")
                      .ok());
    };
    add("1", "first", "{}");
    add("2", "second", R"({"scheduling":{"after":["first"]}})");
    add("3", "damaged", R"({"scheduling":{"after":["second")");
  }
  auto store = Open();
  ASSERT_TRUE(store.ok()) << store.status().message();
  Transaction remove;
  remove.delete_job = {"first", 1};
  EXPECT_THAT(CommitAndWait(**store, remove).status().message(), HasSubstr("while job second"));
  remove.delete_job = {"second", 1};
  EXPECT_TRUE(CommitAndWait(**store, remove).ok());
}

TEST_F(SqliteStoreTest, RequestIdsOfAnOlderSchemaAreThoseOfTheOwnersOfTheirJobs) {
  {
    auto db = SqliteDb::Open(path_);
    ASSERT_TRUE(Migrate(**db, path_, Migrations().first(10)).ok());
    for (const char* owner : {"ada", ""}) {
      const std::string id = "'job-of-" + std::string(owner) + "'";
      ASSERT_TRUE((*db)
                      ->Exec("INSERT INTO jobs (id, version, state, reason, message, submitted_at, "
                             "queued_at, run_dir, summary_json, spec_json, progress_json, "
                             "last_epoch, budget_from, owner) VALUES (" +
                             id +
                             ",1,'QUEUED','REASON_UNSPECIFIED','',1,1,'/r','','{}','{}',0,0,'" +
                             owner + "'); INSERT INTO request_ids VALUES ('request " + owner +
                             "'," + id + ")")
                      .ok());
    }
  }
  auto store = Open();
  ASSERT_TRUE(store.ok()) << store.status().message();
  int jobs = 0;
  const auto submit = [&](const std::string& request, const std::string& owner) {
    Transaction change = NewJob("new-" + std::to_string(++jobs));
    change.job->owner = owner;
    change.client_request_id = request;
    auto result = CommitAndWait(**store, change);
    EXPECT_TRUE(result.ok()) << result.status().message();
    return result.ok() ? result->existing_job_id : "";
  };
  EXPECT_EQ(submit("request ada", "ada"), "job-of-ada");
  EXPECT_EQ(submit("request ", ""), "job-of-");
  EXPECT_EQ(submit("request ada", "bob"), "");
  EXPECT_EQ(submit("request ada", ""), "");
}

TEST_F(SqliteStoreTest, AListReadsNoRowOfJobs) {
  ASSERT_TRUE(Open().ok());
  auto db = SqliteDb::Open(path_);
  const auto plan_of = [&](const JobQuery& query) {
    std::string plan;
    SqliteQuery explain(**db, "EXPLAIN QUERY PLAN " + SqliteStore::ListJobsSql(query));
    while (*explain.Step()) {
      explain.Int();
      explain.Int();
      explain.Int();
      plan += explain.Text() + "\n";
    }
    EXPECT_THAT(plan, testing::Not(HasSubstr("TEMP B-TREE")));
    return plan;
  };
  EXPECT_THAT(plan_of({}), HasSubstr("USING COVERING INDEX jobs_listed"));
  EXPECT_THAT(plan_of({.queue = "research"}), HasSubstr("USING COVERING INDEX jobs_listed"));
  EXPECT_THAT(plan_of({.group = "sweep"}), HasSubstr("USING INDEX jobs_by_group"));
}

TEST_F(SqliteStoreTest, AFullDiskIsReportedAndItsEndIsFound) {
  SqliteOptions options;
  options.path = path_;
  options.probe_every = std::chrono::milliseconds(10);
  std::mutex mutex;
  std::vector<StatusCode> told;
  options.on_writable = [&](const Status& status) {
    std::lock_guard lock(mutex);
    told.push_back(status.code());
  };
  auto store = SqliteStore::Open(options);
  ASSERT_TRUE(store.ok());
  ASSERT_TRUE(SetFailpoints("coordinator.store.before_commit=full").ok());
  EXPECT_EQ(CommitAndWait(**store, NewJob("a")).status().code(), StatusCode::kExhausted);
  EXPECT_EQ((*store)->Writable().code(), StatusCode::kExhausted);
  EXPECT_TRUE((*store)->ListJobs({}).ok()) << "what there is can be read";
  ASSERT_TRUE(SetFailpoints("").ok());
  for (int i = 0; i < 2000 && !(*store)->Writable().ok(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE((*store)->Writable().ok());
  EXPECT_TRUE(CommitAndWait(**store, NewJob("a")).ok());
  std::lock_guard lock(mutex);
  EXPECT_THAT(told, testing::ElementsAre(StatusCode::kExhausted, StatusCode::kOk));
}

TEST_F(SqliteStoreTest, AFileThatIsNoDatabaseIsCorrupt) {
  std::ofstream(path_) << std::string(5000, 'x');
  auto store = Open();
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.status().code(), StatusCode::kCorrupt) << store.status().message();
}

TEST_F(SqliteStoreTest, DamagedPagesAreAnErrorNotACrash) {
  {
    auto store = Open();
    for (int i = 0; i < 200; ++i) {
      ASSERT_TRUE(CommitAndWait(**store, NewJob("j-" + std::to_string(i))).ok());
    }
  }
  auto size = std::filesystem::file_size(path_);
  {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(8192);
    file << std::string(size - 8192, '\xA5');
  }
  auto store = Open();
  if (store.ok()) {
    auto jobs = (*store)->ListJobs({{}, 0, 1000});
    ASSERT_FALSE(jobs.ok());
    EXPECT_EQ(jobs.status().code(), StatusCode::kCorrupt);
  } else {
    EXPECT_EQ(store.status().code(), StatusCode::kCorrupt);
  }
}

TEST_F(SqliteStoreTest, ADatabaseThatCannotGrowRefusesAndServesWhatItHas) {
  SqliteOptions options;
  options.path = path_;
  auto store = SqliteStore::Open(options);
  ASSERT_TRUE(CommitAndWait(**store, NewJob("kept")).ok());
  store->reset();
  // A real SQLITE_FULL: the limit of pages is the size the file has now.
  auto small = SqliteDb::Open(path_);
  ASSERT_TRUE((*small)->Exec("PRAGMA max_page_count=1").ok());
  ASSERT_TRUE((*small)->Exec("BEGIN").ok());
  Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) {
    status = (*small)->Exec("INSERT INTO events (job_id, epoch, time, kind, text) VALUES ('" +
                            std::string(500, 'x') + "',0,0,'','')");
  }
  EXPECT_EQ(status.code(), StatusCode::kExhausted) << status.message();
}

TEST_F(SqliteStoreTest, GroupCommitSharesOneSyncAmongWaitingChanges) {
  SqliteOptions options;
  options.path = path_;
  std::atomic<int64_t> commits = 0;
  std::atomic<int64_t> changes = 0;
  options.on_commit = [&](double, int64_t n) {
    ++commits;
    changes += n;
  };
  auto store = SqliteStore::Open(options);
  ASSERT_TRUE(store.ok());
  auto begin = std::chrono::steady_clock::now();
  constexpr int kChanges = 1000;
  for (int i = 0; i + 1 < kChanges; ++i)
    (*store)->Commit(NewJob("j-" + std::to_string(i)), [](const auto&) {});
  ASSERT_TRUE(CommitAndWait(**store, NewJob("last")).ok());
  std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(changes, kChanges);
  EXPECT_LT(commits, kChanges / 4);
  std::printf("%d changes in %d durable commits, %.0f changes/s\n", kChanges,
              static_cast<int>(commits), kChanges / took.count());
}

}  // namespace
}  // namespace weft::coordinator
