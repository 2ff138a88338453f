// The audit log of the store: with the change or not at all, and hard to change unnoticed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <unistd.h>

#include <filesystem>

#include "coordinator/store/sqlite_store.h"

namespace weft::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class AuditTest : public testing::Test {
 protected:
  AuditTest()
      : dir_(std::filesystem::temp_directory_path() / ("weft-audit-" + std::to_string(getpid()))) {
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
    Open();
  }
  ~AuditTest() override {
    store_.reset();
    std::filesystem::remove_all(dir_);
  }
  void Open() {
    store_.reset();
    SqliteOptions options;
    options.path = dir_ / "weft.db";
    auto opened = SqliteStore::Open(options);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    store_ = std::move(*opened);
  }
  static std::shared_ptr<CallRecord> Call(const std::string& who, const std::string& object) {
    auto call = std::make_shared<CallRecord>();
    call->record.time = 1.5;
    call->record.who = who;
    call->record.role = "user";
    call->record.peer = "ipv4:127.0.0.1:5";
    call->record.method = "SubmitJob";
    call->record.object = object;
    call->record.result = "OK";
    return call;
  }
  static Transaction Submission(const std::string& id, const std::shared_ptr<CallRecord>& call) {
    Transaction change;
    change.job.emplace();
    change.job->id = id;
    change.job->spec.name = "test";
    change.job->spec.data.train = {"a.txt"};
    change.job->owner = call->record.who;
    change.audit = call;
    return change;
  }
  std::vector<AuditRecord> List(const AuditQuery& query = {}) {
    auto records = store_->ListAudit(query);
    EXPECT_TRUE(records.ok()) << records.status().message();
    return records.ok() ? *records : std::vector<AuditRecord>();
  }
  bool Holds() {
    auto holds = store_->AuditChainHolds();
    EXPECT_TRUE(holds.ok()) << holds.status().message();
    return holds.ok() && *holds;
  }
  /// Runs it behind the store's back; what SQLite says, empty if it does it.
  std::string Execute(const std::string& sql) {
    store_.reset();
    sqlite3* db = nullptr;
    EXPECT_EQ(sqlite3_open((dir_ / "weft.db").c_str(), &db), SQLITE_OK);
    const int result = sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr);
    const std::string said = result == SQLITE_OK ? "" : sqlite3_errmsg(db);
    EXPECT_EQ(sqlite3_close(db), SQLITE_OK);
    Open();
    return said;
  }
  /// The same without what keeps the log from changes.
  void Tamper(const std::string& sql) {
    EXPECT_EQ(Execute("DROP TRIGGER IF EXISTS audit_is_not_changed;"
                      "DROP TRIGGER IF EXISTS audit_is_not_deleted;" +
                      sql),
              "");
  }

  const std::filesystem::path dir_;
  std::unique_ptr<SqliteStore> store_;
};

TEST_F(AuditTest, ARecordIsStoredWithItsChangeOrNotAtAll) {
  const auto first = Call("ann", "a-1");
  ASSERT_TRUE(CommitAndWait(*store_, Submission("a-1", first)).ok());
  EXPECT_TRUE(first->stored);
  EXPECT_EQ(store_->OwnerOf("a-1").value(), "ann");
  EXPECT_EQ(store_->QueueOf("a-1").value(), "default");
  // The id is taken: neither the change nor its record.
  const auto again = Call("bob", "a-1");
  EXPECT_EQ(CommitAndWait(*store_, Submission("a-1", again)).status().code(),
            StatusCode::kConflict);
  EXPECT_FALSE(again->stored);
  // By itself.
  Transaction alone;
  alone.audit = Call("eve", "a-1");
  alone.audit->record.result = "PERMISSION_DENIED";
  ASSERT_TRUE(CommitAndWait(*store_, alone).ok());
  EXPECT_TRUE(alone.audit->stored);

  Open();
  const std::vector<AuditRecord> records = List();
  ASSERT_THAT(records, SizeIs(2));
  EXPECT_EQ(records[0].sequence, 1);
  EXPECT_EQ(records[0].who, "ann");
  EXPECT_EQ(records[1].sequence, 2);
  EXPECT_EQ(records[1].result, "PERMISSION_DENIED");
  EXPECT_EQ(records[1].hash, AuditHash(records[1], records[0].hash));
  EXPECT_THAT(List({0, "eve", "", 10}), SizeIs(1));
  EXPECT_THAT(List({1, "", "a-1", 10}), SizeIs(1));
  EXPECT_THAT(List({0, "", "", 1}), SizeIs(1));
  EXPECT_TRUE(Holds());
}

TEST_F(AuditTest, ARepeatedSubmissionIsNoChange) {
  Transaction first = Submission("a-1", Call("ann", "a-1"));
  first.client_request_id = "r";
  ASSERT_TRUE(CommitAndWait(*store_, first).ok());
  Transaction again = Submission("a-2", Call("ann", "a-2"));
  again.client_request_id = "r";
  ASSERT_TRUE(CommitAndWait(*store_, again).ok());
  EXPECT_FALSE(again.audit->stored) << "whoever called has it recorded by itself";
  EXPECT_THAT(List(), SizeIs(1));
}

TEST_F(AuditTest, TheDatabaseRefusesToChangeOrDeleteRecords) {
  for (int i = 0; i < 2; ++i) {
    Transaction alone;
    alone.audit = Call("ann", "a-" + std::to_string(i));
    ASSERT_TRUE(CommitAndWait(*store_, alone).ok());
  }
  for (const char* change : {"UPDATE audit SET who = 'bob' WHERE sequence = 2",
                             "UPDATE OR REPLACE audit SET sequence = 1 WHERE sequence = 2"}) {
    EXPECT_THAT(Execute(change), HasSubstr("records of the audit log are not changed")) << change;
  }
  for (const char* change : {"DELETE FROM audit WHERE sequence = 2", "DELETE FROM audit"}) {
    EXPECT_THAT(Execute(change), HasSubstr("records of the audit log are not deleted")) << change;
  }
  EXPECT_THAT(Execute("INSERT OR REPLACE INTO audit SELECT 2, time, 'bob', role, peer, method, "
                      "object, result, hash FROM audit WHERE sequence = 2"),
              HasSubstr("records of the audit log are not replaced"));
  EXPECT_THAT(List(), SizeIs(2));
  EXPECT_TRUE(Holds());
}

TEST_F(AuditTest, EveryWayToChangeTheLogBreaksTheChain) {
  EXPECT_TRUE(Holds()) << "of an empty log";
  for (int i = 0; i < 3; ++i) {
    Transaction alone;
    alone.audit = Call("ann", "a-" + std::to_string(i));
    ASSERT_TRUE(CommitAndWait(*store_, alone).ok());
  }
  EXPECT_TRUE(Holds());
  const std::vector<std::string> undo = {"who = 'ann'", "object = 'a-1'", "time = 1.5",
                                         "result = 'OK'"};
  const std::vector<std::string> changes = {"who = 'bob'", "object = 'a-9'", "time = 2.5",
                                            "result = 'NOT_FOUND'"};
  for (size_t i = 0; i < changes.size(); ++i) {
    Tamper("UPDATE audit SET " + changes[i] + " WHERE sequence = 2");
    EXPECT_FALSE(Holds()) << changes[i];
    Tamper("UPDATE audit SET " + undo[i] + " WHERE sequence = 2");
    EXPECT_TRUE(Holds()) << undo[i];
  }
  std::filesystem::copy_file(dir_ / "weft.db", dir_ / "kept.db");
  for (const int sequence : {1, 2, 3}) {
    Tamper("DELETE FROM audit WHERE sequence = " + std::to_string(sequence));
    EXPECT_FALSE(Holds()) << sequence;
    store_.reset();
    for (const char* name : {"weft.db", "weft.db-wal", "weft.db-shm"}) {
      std::filesystem::remove(dir_ / name);
    }
    std::filesystem::copy_file(dir_ / "kept.db", dir_ / "weft.db");
    Open();
    EXPECT_TRUE(Holds());
  }
}

TEST_F(AuditTest, UnfinishedJobsAreCountedByOwner) {
  ASSERT_TRUE(CommitAndWait(*store_, Submission("a-1", Call("ann", ""))).ok());
  ASSERT_TRUE(CommitAndWait(*store_, Submission("a-2", Call("ann", ""))).ok());
  ASSERT_TRUE(CommitAndWait(*store_, Submission("b-1", Call("bob", ""))).ok());
  JobRecord ended = store_->GetJob("a-2").value();
  EXPECT_EQ(ended.owner, "ann");
  ended.state = JobState::kFailed;
  Transaction change;
  change.job = ended;
  ASSERT_TRUE(CommitAndWait(*store_, change).ok());
  EXPECT_EQ(store_->CountUnfinishedJobs("ann").value(), 1);
  EXPECT_EQ(store_->CountUnfinishedJobs("eve").value(), 0);
  JobQuery query;
  query.owner = "ann";
  EXPECT_THAT(store_->ListJobs(query).value(), SizeIs(2));
  EXPECT_EQ(store_->OwnerOf("c-1").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(store_->QueueOf("c-1").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace weft::coordinator
