// What a coordinator lists, forgets and refuses to forget.
#include <filesystem>

#include "coordinator/api/testing.h"

namespace weft::coordinator {
namespace {

using ::testing::HasSubstr;

class RetentionCallsTest : public ApiTest {
 protected:
  grpc::Status Delete(const std::string& id, bool run_dir, v1::DeleteJobResponse& response) {
    grpc::ClientContext context;
    v1::DeleteJobRequest request;
    request.set_id(id);
    request.set_delete_run_dir(run_dir);
    return jobs_->DeleteJob(&context, request, &response);
  }
  grpc::Status Forget(const std::string& worker) {
    grpc::ClientContext context;
    v1::ForgetWorkerRequest request;
    request.set_worker_id(worker);
    v1::ForgetWorkerResponse response;
    return jobs_->ForgetWorker(&context, request, &response);
  }
  void Cancel(const std::string& id) {
    grpc::ClientContext context;
    v1::CancelJobRequest request;
    request.set_id(id);
    v1::Job job;
    ASSERT_TRUE(jobs_->CancelJob(&context, request, &job).ok());
  }
  v1::ListJobsResponse List(const v1::ListJobsRequest& request = {}) {
    grpc::ClientContext context;
    v1::ListJobsResponse page;
    const grpc::Status status = jobs_->ListJobs(&context, request, &page);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return page;
  }
};

TEST_F(RetentionCallsTest, ARequestIdOfAnotherSpecIsAnError) {
  v1::SubmitJobResponse first;
  v1::SubmitJobResponse again;
  v1::JobSpec spec = Spec();
  ASSERT_TRUE(Submit(spec, "same", first).ok());
  spec.mutable_train()->set_steps(2000);
  const grpc::Status status = Submit(spec, "same", again);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_THAT(status.error_message(), HasSubstr(first.job().id()));
  EXPECT_THAT(status.error_message(), HasSubstr("train.steps was 1000, is 2000"));
  EXPECT_EQ(List().jobs_size(), 1);
  ASSERT_TRUE(Submit(Spec(), "same", again).ok()) << "the same spec is the same job";
  EXPECT_EQ(again.job().id(), first.job().id());
}

TEST_F(RetentionCallsTest, ListsHaveNeitherSpecsNorAttempts) {
  auto worker = Worker(FakeWorker::Hello("a"));
  const std::string id = MustSubmit(Spec());
  ASSERT_TRUE(worker->Await(kStart));
  worker->Report(id, 1, v1::ATTEMPT_TRAINING);
  AwaitState(id, {v1::RUNNING});
  worker->Heartbeat(id, 1, 7);
  ASSERT_TRUE(worker->Await(v1::CoordinatorMessage::kHeartbeatAck));
  const v1::ListJobsResponse page = List();
  ASSERT_EQ(page.jobs_size(), 1);
  const v1::Job& job = page.jobs(0);
  EXPECT_EQ(job.id(), id);
  EXPECT_EQ(job.state(), v1::RUNNING);
  EXPECT_EQ(job.progress().step(), 7) << "the newest, not the stored one";
  EXPECT_EQ(job.attempt_count(), 1);
  EXPECT_EQ(job.run_dir(), "/runs/" + id);
  EXPECT_FALSE(job.has_spec());
  EXPECT_EQ(job.attempts_size(), 0);
  EXPECT_TRUE(Get(id).has_spec());
}

TEST_F(RetentionCallsTest, PagesStayInOrderWhileJobsComeAndGo) {
  std::vector<std::string> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(MustSubmit(Spec()));
  v1::ListJobsRequest request;
  request.set_page_size(2);
  v1::ListJobsResponse page = List(request);
  EXPECT_EQ(page.jobs(1).id(), ids[4]);
  MustSubmit(Spec());
  Cancel(ids[4]);  // the last of the page before
  v1::DeleteJobResponse deleted;
  ASSERT_TRUE(Delete(ids[4], false, deleted).ok());
  request.set_page_token(page.next_page_token());
  page = List(request);
  ASSERT_EQ(page.jobs_size(), 2);
  EXPECT_EQ(page.jobs(0).id(), ids[3]);
  EXPECT_EQ(page.jobs(1).id(), ids[2]);
}

TEST_F(RetentionCallsTest, OnlyJobsThatHaveEndedAreDeletedAndNothingOfThemStays) {
  const std::string id = MustSubmit(Spec());
  v1::DeleteJobResponse deleted;
  grpc::Status status = Delete(id, false, deleted);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("QUEUED"));
  Cancel(id);
  ASSERT_TRUE(Delete(id.substr(0, id.size() - 1), false, deleted).ok());
  EXPECT_EQ(deleted.id(), id);
  EXPECT_EQ(List().jobs_size(), 0);
  EXPECT_EQ(Delete(id, false, deleted).error_code(), grpc::StatusCode::NOT_FOUND);
  const auto events = coordinator_->store->ListEvents(id);
  ASSERT_TRUE(events.ok());
  ASSERT_EQ(events->size(), 1u) << "who deleted it stays";
  EXPECT_EQ(events->front().kind, "deleted");
  EXPECT_THAT(events->front().text, HasSubstr("by a user"));
  v1::SubmitJobResponse response;
  ASSERT_TRUE(Submit(Spec(), "r1", response).ok());
  EXPECT_NE(response.job().id(), id) << "its request id is free";
}

TEST_F(RetentionCallsTest, AWorkerIsForgottenWhenItIsGone) {
  auto worker = Worker(FakeWorker::Hello("a"));
  ASSERT_TRUE(worker->Await(kRegistered));
  EXPECT_EQ(Forget("b").error_code(), grpc::StatusCode::NOT_FOUND);
  grpc::Status status = Forget("a");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("attached"));
  worker.reset();
  for (int i = 0; i < 500 && !(status = Forget("a")).ok(); ++i) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    std::this_thread::sleep_for(milliseconds(20));  // until its lease is over
  }
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(coordinator_->service->Workers().empty());
  EXPECT_EQ(coordinator_->Metric("weft_coord_workers"), 0);
  auto back = Worker(FakeWorker::Hello("a"));
  EXPECT_TRUE(back->Await(kRegistered)) << "it may come back";
}

}  // namespace
}  // namespace weft::coordinator
