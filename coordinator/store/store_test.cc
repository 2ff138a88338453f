#include "coordinator/store/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <limits>
#include <thread>

#include "common/failpoint.h"
#include "common/spec/spec_json.h"
#include "coordinator/store/sqlite_store.h"
#include "coordinator/store/store_contract.h"

namespace weft::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::unique_ptr<Store> OpenSqlite(const std::string& path) {
  SqliteOptions options;
  options.path = path;
  options.log_bytes_per_job = 1000;
  auto store = SqliteStore::Open(options);
  EXPECT_TRUE(store.ok()) << store.status().message();
  return store.ok() ? std::move(*store) : nullptr;
}

TEST_P(StoreContract, AJobComesBackAsItWasStored) {
  JobRecord job = NewJob("j-1");
  job.state = JobState::kRecovering;
  job.reason = Reason::kOutOfMemory;
  job.message = "größer";
  job.started_at = 7.25;
  job.progress.validation_loss = 1.5;
  job.progress.loss = std::numeric_limits<double>::quiet_NaN();
  job.progress.recent_losses = {3, std::numeric_limits<double>::infinity(), 2};
  job.last_epoch = 4;
  job.retried_from = 2;
  job.queue = "research";
  job.priority = -7;
  job.owner = "ada";
  auto result = CommitAndWait(*store_, Put(job));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->job_version, 1);
  auto back = store_->GetJob("j-1");
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->state, JobState::kRecovering);
  EXPECT_EQ(back->reason, Reason::kOutOfMemory);
  EXPECT_EQ(back->message, "größer");
  EXPECT_EQ(back->started_at, 7.25);
  EXPECT_FALSE(back->ended_at);
  EXPECT_EQ(back->progress.validation_loss, 1.5);
  EXPECT_THAT(back->progress.recent_losses, ElementsAre(3, 2));
  EXPECT_EQ(ToJson(back->spec), ToJson(job.spec));
  EXPECT_EQ(back->version, 1);
  EXPECT_EQ(back->retried_from, 2);
  EXPECT_EQ(back->queue, "research");
  EXPECT_EQ(back->priority, -7);
  EXPECT_EQ(back->owner, "ada");
  EXPECT_EQ(store_->GetJob("j-2").status().code(), StatusCode::kNotFound);
}

TEST_P(StoreContract, AChangeFromAnOldVersionIsRefusedWhole) {
  MustCommit(Put(NewJob("j")));
  JobRecord job = *store_->GetJob("j");
  MustCommit(Put(job));  // now at version 2
  Transaction stale = Put(job);
  stale.events.push_back({"j", 0, 1, "transition", "never"});
  auto result = CommitAndWait(*store_, stale);
  EXPECT_EQ(result.status().code(), StatusCode::kConflict);
  EXPECT_THAT(*store_->ListEvents("j"), IsEmpty());
  EXPECT_EQ(CommitAndWait(*store_, Put(NewJob("j"))).status().code(), StatusCode::kConflict);
}

TEST_P(StoreContract, OneRequestIdGivesOneJob) {
  Transaction first = Put(NewJob("j-first"));
  first.client_request_id = "r";
  MustCommit(first);
  Transaction second = Put(NewJob("j-second"));
  second.client_request_id = "r";
  auto result = CommitAndWait(*store_, second);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->existing_job_id, "j-first");
  EXPECT_THAT(*store_->FindJobIds("j-", 10), ElementsAre("j-first"));
}

TEST_P(StoreContract, RequestIdsAreThoseOfAPerson) {
  const auto submit = [&](const std::string& id, const std::string& owner) {
    Transaction change = Put(NewJob(id));
    change.job->owner = owner;
    change.client_request_id = "r";
    auto result = CommitAndWait(*store_, change);
    EXPECT_TRUE(result.ok()) << result.status().message();
    return result.ok() ? result->existing_job_id : "";
  };
  EXPECT_EQ(submit("j-ada", "ada"), "");
  EXPECT_EQ(submit("j-bob", "bob"), "");
  EXPECT_EQ(submit("j-nobody", ""), "");
  EXPECT_EQ(submit("j-again", "bob"), "j-bob");
  EXPECT_EQ(submit("j-again", "ada"), "j-ada");
  EXPECT_EQ(submit("j-again", ""), "j-nobody");
  EXPECT_EQ(store_->JobOfRequest("bob", "r").value(), "j-bob");
  EXPECT_EQ(store_->JobOfRequest("", "r").value(), "j-nobody");
  EXPECT_EQ(store_->JobOfRequest("bob", "s").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(store_->FindJobIds("j-", 10)->size(), 3u);
}

TEST_P(StoreContract, RacingSubmissionsOfOneRequestMakeOneJob) {
  std::atomic<int> created = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      Transaction t = Put(NewJob("j-" + std::to_string(i)));
      t.client_request_id = "same";
      auto result = CommitAndWait(*store_, t);
      if (result.ok() && result->existing_job_id.empty()) ++created;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(created, 1);
  EXPECT_EQ(store_->FindJobIds("", 100)->size(), 1u);
}

TEST_P(StoreContract, EpochsOnlyGrow) {
  MustCommit(Put(NewJob("j")));
  Transaction t;
  t.attempt = AttemptRecord{};
  t.attempt->job_id = "j";
  t.attempt->epoch = 3;
  t.attempt->plan.rank_workers = {"a", "b"};
  t.attempt->placements = {{"a", {0}, PlacementState::kTraining},
                           {"b", {1}, PlacementState::kLost}};
  MustCommit(t);
  t.attempt->last_step = 9;
  t.attempt->times.failed_at = 12.5;
  t.attempt->times.done_before = 7;
  MustCommit(t);  // the same one: an update
  t.attempt->epoch = 2;
  EXPECT_EQ(CommitAndWait(*store_, t).status().code(), StatusCode::kConflict);
  auto attempts = *store_->ListAttempts("j");
  ASSERT_EQ(attempts.size(), 1u);
  EXPECT_EQ(attempts[0].last_step, 9);
  EXPECT_EQ(attempts[0].times, t.attempt->times);
  EXPECT_THAT(attempts[0].plan.rank_workers, ElementsAre("a", "b"));
  ASSERT_EQ(attempts[0].placements.size(), 2u);
  EXPECT_EQ(attempts[0].placements[1].state, PlacementState::kLost);
  EXPECT_THAT(attempts[0].placements[1].ranks, ElementsAre(1));
}

TEST_P(StoreContract, IntentsStayUntilRemoved) {
  Transaction t;
  t.add_intents = {{"a", "j", 1, IntentKind::kStart, false},
                   {"a", "j", 1, IntentKind::kStop, true}};
  MustCommit(t);
  MustCommit(t);
  EXPECT_EQ(store_->ListIntents()->size(), 2u);
  Transaction remove;
  remove.remove_intents = {{"a", "j", 1, IntentKind::kStart, false}};
  MustCommit(remove);
  auto left = *store_->ListIntents();
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].kind, IntentKind::kStop);
  EXPECT_TRUE(left[0].graceful);
}

TEST_P(StoreContract, JobsAreListedNewestFirstInPages) {
  for (int i = 0; i < 5; ++i) {
    JobRecord job = NewJob("j-" + std::to_string(i));
    if (i == 1) job.state = JobState::kFailed;
    MustCommit(Put(job));
  }
  auto page = *store_->ListJobs({{}, 0, 2});
  ASSERT_EQ(page.size(), 2u);
  EXPECT_EQ(page[0].id, "j-4");
  page = *store_->ListJobs({{}, page[1].ordinal, 10});
  ASSERT_EQ(page.size(), 3u);
  EXPECT_EQ(page[0].id, "j-2");
  page = *store_->ListJobs({{JobState::kFailed, JobState::kRunning}, 0, 10});
  ASSERT_EQ(page.size(), 1u);
  EXPECT_EQ(page[0].id, "j-1");
  EXPECT_THAT(*store_->FindJobIds("j-3", 10), ElementsAre("j-3"));
  EXPECT_THAT(*store_->FindJobIds("k", 10), IsEmpty());
}

TEST_P(StoreContract, JobsAreListedByQueueGroupAndOwner) {
  struct Row {
    const char* id;
    const char* queue;
    const char* group;
    const char* owner;
  };
  for (const Row& row :
       {Row{"j-1", "default", "", "ada"}, Row{"j-2", "research", "sweep", "ada"},
        Row{"j-3", "research", "sweep", "bob"}, Row{"j-4", "research", "", "bob"}}) {
    JobRecord job = NewJob(row.id);
    job.queue = row.queue;
    job.priority = 3;
    job.spec.scheduling.group = row.group;
    job.owner = row.owner;
    MustCommit(Put(job));
  }
  const auto ids = [&](JobQuery query) {
    std::vector<std::string> found;
    const std::vector<JobSummary> jobs = *store_->ListJobs(query);
    for (const JobSummary& job : jobs) found.push_back(job.id);
    return found;
  };
  EXPECT_THAT(ids({.queue = "research"}), ElementsAre("j-4", "j-3", "j-2"));
  EXPECT_THAT(ids({.group = "sweep"}), ElementsAre("j-3", "j-2"));
  EXPECT_THAT(ids({.owner = "ada"}), ElementsAre("j-2", "j-1"));
  EXPECT_THAT(ids({.group = "sweep", .owner = "bob"}), ElementsAre("j-3"));
  EXPECT_THAT(ids({.states = {JobState::kRunning}, .queue = "research"}), IsEmpty());
  const JobSummary row = store_->ListJobs({.group = "sweep"})->front();
  EXPECT_EQ(row.queue, "research");
  EXPECT_EQ(row.priority, 3);
  EXPECT_EQ(row.group, "sweep");
  EXPECT_EQ(row.owner, "bob");
  // A job that is moved is found where it is now.
  JobRecord moved = *store_->GetJob("j-4");
  moved.queue = "default";
  moved.priority = 9;
  MustCommit(Put(moved));
  EXPECT_THAT(ids({.queue = "default"}), ElementsAre("j-4", "j-1"));
  EXPECT_EQ(store_->GetJob("j-4")->priority, 9);
}

TEST_P(StoreContract, WhatIsSaidOfAWorkerIsKeptUntilItMayHaveJobsAgain) {
  EXPECT_THAT(*store_->ListWorkerScheduling(), IsEmpty());
  const WorkerSchedulingRecord cordoned{"w-2", WorkerScheduling::kCordoned, "new disk"};
  const WorkerSchedulingRecord bad{"w-1", WorkerScheduling::kQuarantined, "wrong products"};
  for (const WorkerSchedulingRecord& record :
       {WorkerSchedulingRecord{"w-2", WorkerScheduling::kDraining, ""}, cordoned, bad}) {
    Transaction change;
    change.worker_scheduling = record;
    MustCommit(change);
  }
  EXPECT_THAT(*store_->ListWorkerScheduling(), ElementsAre(bad, cordoned));
  Transaction change;
  change.worker_scheduling = {"w-1", WorkerScheduling::kSchedulable, ""};
  MustCommit(change);
  EXPECT_THAT(*store_->ListWorkerScheduling(), ElementsAre(cordoned));
}

TEST_P(StoreContract, JobsThatHaveNotEndedAreFoundOldestFirst) {
  for (const char* id : {"c", "a", "b", "d"}) MustCommit(Put(NewJob(id)));
  JobRecord ended = *store_->GetJob("a");
  ended.state = JobState::kFailed;
  MustCommit(Put(ended));
  JobRecord running = *store_->GetJob("d");
  running.state = JobState::kRunning;
  MustCommit(Put(running));
  const auto found = store_->ListUnfinished();
  ASSERT_TRUE(found.ok()) << found.status().message();
  ASSERT_EQ(found->size(), 3u);
  EXPECT_EQ((*found)[0].id, "c");
  EXPECT_EQ((*found)[0].state, JobState::kQueued);
  EXPECT_EQ((*found)[1].id, "b");
  EXPECT_EQ((*found)[2].id, "d");
  EXPECT_EQ((*found)[2].state, JobState::kRunning);
}

TEST_P(StoreContract, AListHasTheNumbersAndNotTheTexts) {
  JobRecord job = NewJob("j-1");
  job.state = JobState::kRunning;
  job.reason = Reason::kReplanned;
  job.message = std::string(1000, 'm');
  job.started_at = 6;
  job.run_dir = "/runs/j-1";
  job.last_epoch = 3;
  job.progress.step = 7;
  job.progress.steps_total = 10;
  job.progress.loss = 2.5;
  job.progress.validation_loss = 2.25;
  job.progress.tokens_per_second = 1e6;
  job.progress.eta_seconds = 60;
  MustCommit(Put(job));
  job.version = 1;
  job.progress.step = 8;
  job.progress.validation_loss.reset();
  job.progress.loss = std::numeric_limits<double>::infinity();
  MustCommit(Put(job));
  const std::vector<JobSummary> list = *store_->ListJobs({});
  ASSERT_EQ(list.size(), 1u);
  const JobSummary& row = list[0];
  EXPECT_EQ(row.id, "j-1");
  EXPECT_EQ(row.state, JobState::kRunning);
  EXPECT_EQ(row.reason, Reason::kReplanned);
  EXPECT_EQ(row.message, std::string(200, 'm'));
  EXPECT_EQ(row.submitted_at, 5);
  EXPECT_EQ(row.started_at, 6);
  EXPECT_EQ(row.ended_at, std::nullopt);
  EXPECT_EQ(row.run_dir, "/runs/j-1");
  EXPECT_EQ(row.last_epoch, 3);
  EXPECT_EQ(row.version, 2);
  EXPECT_EQ(row.progress.step, 8);
  EXPECT_EQ(row.progress.steps_total, 10);
  EXPECT_EQ(row.progress.loss, 0) << "as in the whole record: JSON has no infinity";
  EXPECT_EQ(row.progress.validation_loss, std::nullopt);
  EXPECT_EQ(row.progress.tokens_per_second, 1e6);
  EXPECT_EQ(row.progress.eta_seconds, 60);
}

TEST_P(StoreContract, ADeletedJobLeavesNothingButTheEventThatSaysSo) {
  JobRecord job = NewJob("j-1");
  Transaction change = Put(job);
  change.client_request_id = "r";
  AttemptRecord attempt;
  attempt.job_id = "j-1";
  attempt.epoch = 1;
  change.attempt = attempt;
  change.events.push_back({"j-1", 0, 1, "submitted", ""});
  change.checkpoint = CheckpointRecord{"j-1", 10, 1, "/c", 5, true, 2};
  change.add_intents.push_back({"w", "j-1", 1, IntentKind::kStart, false});
  RunRecord run;
  run.job_id = "j-1";
  run.epoch = 1;
  change.run = run;
  change.logs = LogAppend{"j-1", 1, "w", 1, {{0, 1, 0, false, 1, "line"}}};
  MustCommit(change);
  MustCommit(Put(NewJob("j-2")));
  Transaction stale;
  stale.delete_job = {"j-1", 7};
  EXPECT_EQ(CommitAndWait(*store_, stale).status().code(), StatusCode::kConflict);
  Transaction remove;
  remove.delete_job = {"j-1", 1};
  remove.events.push_back({"j-1", 1, 3, "deleted", "by a test"});
  MustCommit(remove);
  EXPECT_EQ(store_->GetJob("j-1").status().code(), StatusCode::kNotFound);
  EXPECT_THAT(*store_->ListAttempts("j-1"), IsEmpty());
  EXPECT_THAT(*store_->ListCheckpoints("j-1"), IsEmpty());
  EXPECT_THAT(*store_->ListIntents(), IsEmpty());
  EXPECT_THAT(*store_->ListRuns(10), IsEmpty());
  LogQuery logs;
  logs.job_id = "j-1";
  EXPECT_THAT(*store_->ReadLogs(logs), IsEmpty());
  ASSERT_EQ(store_->ListEvents("j-1")->size(), 1u);
  EXPECT_EQ(store_->ListEvents("j-1")->front().kind, "deleted");
  EXPECT_TRUE(store_->GetJob("j-2").ok());
  change.job->id = "j-3";  // its request id is free again
  change.attempt.reset();
  change.run.reset();
  EXPECT_EQ(CommitAndWait(*store_, change)->existing_job_id, "");
}

TEST_P(StoreContract, AJobIsDeletedOnlyOnceThoseAfterItHaveEnded) {
  MustCommit(Put(NewJob("first")));
  JobRecord waiting = NewJob("waiting");
  waiting.spec.scheduling.after = {"first", "first"};
  MustCommit(Put(waiting));
  Transaction remove;
  remove.delete_job = {"first", 1};
  const Status refused = CommitAndWait(*store_, remove).status();
  EXPECT_EQ(refused.code(), StatusCode::kConflict);
  EXPECT_THAT(refused.message(), HasSubstr("while job waiting, which comes after it"));
  EXPECT_TRUE(store_->GetJob("first").ok());
  waiting.version = 1;
  waiting.state = JobState::kFailed;
  MustCommit(Put(waiting));
  MustCommit(remove);
  EXPECT_EQ(store_->GetJob("first").status().code(), StatusCode::kNotFound);
  // None comes after it any more.
  JobRecord late = NewJob("late");
  late.spec.scheduling.after = {"first"};
  EXPECT_EQ(CommitAndWait(*store_, Put(late)).status().code(), StatusCode::kConflict);
  EXPECT_EQ(store_->GetJob("late").status().code(), StatusCode::kNotFound);
}

TEST_P(StoreContract, FoldersToDeleteAreKeptUntilTheyAreGone) {
  MustCommit(Put(NewJob("j-1")));
  Transaction remove;
  remove.delete_job = {"j-1", 1};
  remove.add_folder_deletion = FolderDeletionRecord{"j-1", "/runs/j-1"};
  MustCommit(remove);
  EXPECT_THAT(*store_->ListFolderDeletions(),
              ElementsAre(FolderDeletionRecord{"j-1", "/runs/j-1"}));
  Transaction done;
  done.end_folder_deletion = "j-1";
  MustCommit(done);
  MustCommit(done);
  EXPECT_THAT(*store_->ListFolderDeletions(), IsEmpty());
}

TEST_P(StoreContract, NoJobGetsTheIdOfOneThatWasDeleted) {
  MustCommit(Put(NewJob("j-1")));
  Transaction remove;
  remove.delete_job = {"j-1", 1};
  MustCommit(remove);
  const Status status = CommitAndWait(*store_, Put(NewJob("j-1"))).status();
  EXPECT_EQ(status.code(), StatusCode::kConflict);
  EXPECT_EQ(status.message(), "there was a job j-1, which was deleted");
  EXPECT_EQ(store_->GetJob("j-1").status().code(), StatusCode::kNotFound);
}

TEST_P(StoreContract, OldJobsAreFoundAndOldEventsForgotten) {
  for (int i = 0; i < 4; ++i) {
    JobRecord job = NewJob("j-" + std::to_string(i));
    job.state = i == 3 ? JobState::kQueued : JobState::kFailed;
    job.ended_at = 10 - i;  // a queued one may have ended before a retry
    Transaction change = Put(job);
    for (int e = 0; e < 5; ++e) change.events.push_back({job.id, e, 1, "e", ""});
    MustCommit(change);
  }
  EXPECT_THAT(*store_->ListEndedBefore(10, 10), ElementsAre("j-2", "j-1"));
  EXPECT_THAT(*store_->ListEndedBefore(10, 1), ElementsAre("j-2"));
  Transaction trim;
  trim.keep_events = 2;
  trim.events.push_back({"gone", 0, 5, "deleted", ""});
  MustCommit(trim);
  ASSERT_EQ(store_->ListEvents("j-1")->size(), 2u);
  EXPECT_EQ(store_->ListEvents("j-1")->front().epoch, 3) << "the newest stay";
  Transaction forget;
  forget.forget_deleted_before = 5;
  MustCommit(forget);
  EXPECT_EQ(store_->ListEvents("gone")->size(), 1u);
  forget.forget_deleted_before = 6;
  MustCommit(forget);
  EXPECT_THAT(*store_->ListEvents("gone"), IsEmpty());
  EXPECT_EQ(store_->ListEvents("j-1")->size(), 2u);
}

std::vector<LogRecord> Lines(std::initializer_list<const char*> texts) {
  std::vector<LogRecord> lines;
  for (const char* text : texts) lines.push_back({0, 0, 1, true, 2.5, text});
  return lines;
}

std::vector<std::string> Texts(const std::vector<LogRecord>& lines) {
  std::vector<std::string> texts;
  for (const auto& line : lines) texts.push_back(line.text);
  return texts;
}

TEST_P(StoreContract, LogLinesSentTwiceAreStoredOnce) {
  Transaction t;
  t.logs = LogAppend{"j", 1, "a", 1, Lines({"one", "two"})};
  MustCommit(t);
  t.logs = LogAppend{"j", 1, "a", 2, Lines({"two", "three"})};
  auto result = CommitAndWait(*store_, t);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->log_position, 3);
  t.logs = LogAppend{"j", 1, "b", 1, Lines({"other"})};
  MustCommit(t);
  auto lines = *store_->ReadLogs({"j", 0, {}, {}, 100});
  EXPECT_THAT(Texts(lines), ElementsAre("one", "two", "three", "other"));
  for (size_t i = 0; i < lines.size(); ++i)
    EXPECT_EQ(lines[i].sequence, static_cast<int64_t>(i + 1));
  EXPECT_TRUE(lines[0].is_stderr);
  EXPECT_EQ(lines[0].rank, 1);
  t.logs = LogAppend{"j", 1, "a", 9, Lines({"after lost lines"})};
  result = CommitAndWait(*store_, t);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->log_position, 9);
  EXPECT_EQ(result->last_log_sequence, 5);
  t.logs = LogAppend{"j", 1, "a", 12, Lines({"too early"}), /*follows=*/true};
  EXPECT_EQ(CommitAndWait(*store_, t).status().code(), StatusCode::kConflict);
  t.logs->first_position = 10;
  EXPECT_EQ(CommitAndWait(*store_, t)->log_position, 10);
}

TEST_P(StoreContract, LogsAreReadByCursorFilterAndTail) {
  Transaction t;
  t.logs = LogAppend{"j", 1, "a", 1, Lines({"1", "2", "3"})};
  t.logs->lines[1].rank = 0;
  MustCommit(t);
  t.logs = LogAppend{"j", 2, "a", 1, Lines({"4"})};
  MustCommit(t);
  EXPECT_THAT(Texts(*store_->ReadLogs({"j", 2, {}, {}, 100})), ElementsAre("3", "4"));
  EXPECT_THAT(Texts(*store_->ReadLogs({"j", 0, 0, {}, 100})), ElementsAre("2"));
  EXPECT_THAT(Texts(*store_->ReadLogs({"j", 0, {}, 2, 100})), ElementsAre("4"));
  EXPECT_EQ(*store_->TailCursor({"j", 0, {}, {}, 0}, 1), 3);
  EXPECT_EQ(*store_->TailCursor({"j", 0, 1, {}, 0}, 2), 1);
  EXPECT_EQ(*store_->TailCursor({"j", 0, {}, {}, 0}, 99), 0);
}

TEST_P(StoreContract, OldLogLinesGoWhenTheJobsLogIsFull) {
  Transaction t;
  t.logs = LogAppend{"j", 1, "a", 1, {}};
  for (int i = 0; i < 40; ++i) {
    t.logs->lines = {{0, 0, 0, false, 1, std::string(100, 'x')}};
    t.logs->first_position = i + 1;
    MustCommit(t);
  }
  auto lines = *store_->ReadLogs({"j", 0, {}, {}, 100});
  EXPECT_LE(lines.size(), 10u);
  EXPECT_GE(lines.size(), 9u);
  EXPECT_EQ(lines.back().sequence, 40);
}

TEST_P(StoreContract, ACheckpointReplacesTheOneOfItsStep) {
  Transaction t;
  t.checkpoint = CheckpointRecord{"j", 100, 1, "/c/100", 5, false, 1};
  MustCommit(t);
  t.checkpoint->verified = true;
  MustCommit(t);
  t.checkpoint->step = 200;
  MustCommit(t);
  auto list = *store_->ListCheckpoints("j");
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].step, 200);
  EXPECT_TRUE(list[1].verified);
}

TEST_P(StoreContract, RecordsOfCheckpointsThatRetentionDeletesGoWithTheNextVerifiedOne) {
  auto put = [&](const char* job, int64_t step, bool verified,
                 std::optional<CheckpointRetention> retention = {}) {
    Transaction t;
    t.checkpoint = CheckpointRecord{job, step, 1, "/c", 5, verified, 1};
    t.retention = retention;
    MustCommit(t);
  };
  auto steps = [&](const char* job) {
    std::vector<int64_t> found;
    const auto list = *store_->ListCheckpoints(job);
    for (const auto& checkpoint : list) found.push_back(checkpoint.step);
    return found;
  };
  for (int64_t step : {10, 20, 30, 50, 90}) put("j", step, true);
  put("j", 40, false);  // never verified: does not count, and goes
  put("other", 10, true);
  put("j", 60, false);
  EXPECT_EQ(steps("j").size(), 7u) << "nothing goes before the newer one is verified";
  // 90 is of a run that was given up; the attempt started from 20.
  put("j", 60, true, CheckpointRetention{3, 20});
  EXPECT_EQ(steps("j"), (std::vector<int64_t>{90, 60, 50, 30, 20}));
  put("j", 70, true, CheckpointRetention{1, {}});
  EXPECT_EQ(steps("j"), (std::vector<int64_t>{90, 70}));
  EXPECT_EQ(steps("other"), std::vector<int64_t>{10});
}

TEST_P(StoreContract, AFullDiskIsNeverAcknowledged) {
  ASSERT_TRUE(SetFailpoints("coordinator.store.before_commit=full").ok());
  auto result = CommitAndWait(*store_, Put(NewJob("j")));
  EXPECT_EQ(result.status().code(), StatusCode::kExhausted);
  ASSERT_TRUE(SetFailpoints("").ok());
  EXPECT_EQ(store_->GetJob("j").status().code(), StatusCode::kNotFound);
  MustCommit(Put(NewJob("j")));  // and goes on when there is room again
}

TEST_P(StoreContract, RepliesComeInTheOrderOfTheCommits) {
  std::vector<int> order;
  std::promise<void> last;
  for (int i = 0; i < 300; ++i) {
    store_->Commit(Put(NewJob("j-" + std::to_string(i))), [&, i](const Result<CommitResult>& r) {
      EXPECT_TRUE(r.ok());
      order.push_back(i);
      if (i == 299) last.set_value();
    });
  }
  last.get_future().wait();
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_EQ(order.size(), 300u);
}

INSTANTIATE_TEST_SUITE_P(
    Backends, StoreContract,
    testing::Values(
        Backend{"SqliteFile", [](const std::string& dir) { return OpenSqlite(dir + "/w.db"); }},
        Backend{"SqliteMemory", [](const std::string&) { return OpenSqlite(":memory:"); }}),
    [](const auto& backend) { return backend.param.name; });

}  // namespace
}  // namespace weft::coordinator
