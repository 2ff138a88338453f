// The calls that concern queues, as clients see them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/api/testing.h"

namespace weft::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class QueueCallsTest : public ApiTest {
 protected:
  template <class Request, class Response>
  grpc::Status Call(grpc::Status (v1::Coordinator::Stub::*method)(grpc::ClientContext*,
                                                                  const Request&, Response*),
                    const Request& request, Response& response) {
    grpc::ClientContext context;
    return (jobs_.get()->*method)(&context, request, &response);
  }
  template <class Request>
  grpc::Status Ask(grpc::Status (v1::Coordinator::Stub::*method)(grpc::ClientContext*,
                                                                 const Request&, v1::Job*),
                   const std::string& id) {
    Request request;
    request.set_id(id);
    v1::Job job;
    return Call(method, request, job);
  }
  std::vector<std::string> List(const std::string& queue, const std::string& group) {
    v1::ListJobsRequest request;
    request.set_queue(queue);
    request.set_group(group);
    v1::ListJobsResponse response;
    EXPECT_TRUE(Call(&v1::Coordinator::Stub::ListJobs, request, response).ok());
    std::vector<std::string> ids;
    for (const v1::Job& job : response.jobs()) ids.push_back(job.id());
    return ids;
  }
};

TEST_F(QueueCallsTest, AJobIsPausedAndResumed) {
  const std::string id = MustSubmit(Spec());
  EXPECT_TRUE(Ask(&v1::Coordinator::Stub::PauseJob, id).ok());
  EXPECT_EQ(Get(id).state(), v1::PAUSED);
  EXPECT_EQ(Get(id).reason(), v1::PAUSED_BY_USER);
  EXPECT_TRUE(Ask(&v1::Coordinator::Stub::PauseJob, id).ok()) << "twice is as once";
  EXPECT_TRUE(Ask(&v1::Coordinator::Stub::ResumeJob, id).ok());
  EXPECT_EQ(Get(id).state(), v1::QUEUED);
  const grpc::Status again = Ask(&v1::Coordinator::Stub::ResumeJob, id);
  EXPECT_EQ(again.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(again.error_message(), HasSubstr("only PAUSED and PAUSING jobs can be resumed"));
  EXPECT_EQ(Ask(&v1::Coordinator::Stub::PauseJob, "nobody").error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(QueueCallsTest, AJobHasItsPlaceInListsAndCanBeMoved) {
  QueueSpec research;
  research.name = "research";
  ASSERT_TRUE(coordinator_->service->SetQueues({{research}}).ok());
  v1::JobSpec spec = Spec();
  spec.mutable_scheduling()->set_priority(3);
  spec.mutable_scheduling()->set_group("sweep");
  const std::string id = MustSubmit(spec);
  MustSubmit(Spec());
  EXPECT_EQ(Get(id).queue(), "default");
  EXPECT_EQ(Get(id).priority(), 3);
  EXPECT_EQ(Get(id).group(), "sweep");
  v1::UpdateJobRequest request;
  request.set_id(id);
  v1::Job job;
  EXPECT_EQ(Call(&v1::Coordinator::Stub::UpdateJob, request, job).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT)
      << "nothing is asked for";
  request.set_queue("research");
  request.set_priority(-2);
  ASSERT_TRUE(Call(&v1::Coordinator::Stub::UpdateJob, request, job).ok());
  EXPECT_EQ(job.queue(), "research");
  EXPECT_EQ(job.priority(), -2);
  EXPECT_THAT(List("research", ""), ElementsAre(id));
  EXPECT_THAT(List("", "sweep"), ElementsAre(id));
  request.set_queue("resarch");
  const grpc::Status unknown = Call(&v1::Coordinator::Stub::UpdateJob, request, job);
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(unknown.error_message(), HasSubstr("did you mean 'research'?"));
}

TEST_F(QueueCallsTest, ASubmissionSentAgainIsTheSameJobAlsoAfterItWasMoved) {
  v1::SubmitJobResponse first, second;
  ASSERT_TRUE(Submit(Spec(), "once", first).ok());
  v1::UpdateJobRequest request;
  request.set_id(first.job().id());
  request.set_priority(7);
  v1::Job job;
  ASSERT_TRUE(Call(&v1::Coordinator::Stub::UpdateJob, request, job).ok());
  ASSERT_TRUE(Submit(Spec(), "once", second).ok());
  EXPECT_TRUE(second.already_submitted());
  EXPECT_EQ(second.job().id(), first.job().id());
}

TEST_F(QueueCallsTest, AJobThatWaitsSaysForWhatAndForWhom) {
  auto worker = Worker(FakeWorker::Hello("w", 1));
  ASSERT_TRUE(worker->Await(kRegistered));
  const std::string running = MustSubmit(Spec());
  ASSERT_TRUE(worker->Await(kStart));
  worker->Report(running, 1, v1::ATTEMPT_TRAINING);
  AwaitState(running, {v1::RUNNING});
  const std::string waiting = MustSubmit(Spec());
  v1::ExplainJobRequest request;
  request.set_id(waiting);
  v1::ExplainJobResponse why;
  for (int i = 0; i < 500 && why.position() == 0; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
    ASSERT_TRUE(Call(&v1::Coordinator::Stub::ExplainJob, request, why).ok());
  }
  EXPECT_EQ(why.state(), v1::QUEUED);
  EXPECT_EQ(why.reason(), v1::WAITING_FOR_CAPACITY);
  EXPECT_EQ(why.position(), 1);
  EXPECT_EQ(why.waiting(), 1);
  request.set_id(running);
  ASSERT_TRUE(Call(&v1::Coordinator::Stub::ExplainJob, request, why).ok());
  EXPECT_EQ(why.state(), v1::RUNNING);
  EXPECT_EQ(why.position(), 0);
}

TEST_F(QueueCallsTest, AWorkerIsCordonedAndListedSo) {
  auto worker = Worker(FakeWorker::Hello("w"));
  ASSERT_TRUE(worker->Await(kRegistered));
  v1::SetWorkerSchedulingRequest request;
  request.set_worker_id("w");
  v1::Worker view;
  EXPECT_EQ(Call(&v1::Coordinator::Stub::SetWorkerScheduling, request, view).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  request.set_scheduling(v1::CORDONED);
  request.set_why("new disk");
  ASSERT_TRUE(Call(&v1::Coordinator::Stub::SetWorkerScheduling, request, view).ok());
  EXPECT_EQ(view.scheduling(), v1::CORDONED);
  v1::ListWorkersResponse workers;
  ASSERT_TRUE(Call(&v1::Coordinator::Stub::ListWorkers, v1::ListWorkersRequest(), workers).ok());
  ASSERT_EQ(workers.workers_size(), 1);
  EXPECT_EQ(workers.workers(0).scheduling(), v1::CORDONED);
  EXPECT_EQ(workers.workers(0).scheduling_why(), "new disk");
  request.set_worker_id("x");
  EXPECT_EQ(Call(&v1::Coordinator::Stub::SetWorkerScheduling, request, view).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(QueueCallsTest, QueuesAreListedWithWhatTheirJobsHold) {
  v1::ListQueuesResponse queues;
  ASSERT_TRUE(Call(&v1::Coordinator::Stub::ListQueues, v1::ListQueuesRequest(), queues).ok());
  ASSERT_EQ(queues.queues_size(), 1);
  EXPECT_EQ(queues.queues(0).name(), "default");
  EXPECT_EQ(queues.queues(0).waiting_jobs(), 0);
  MustSubmit(Spec());
  for (int i = 0; i < 500 && queues.queues(0).waiting_jobs() == 0; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
    ASSERT_TRUE(Call(&v1::Coordinator::Stub::ListQueues, v1::ListQueuesRequest(), queues).ok());
  }
  EXPECT_EQ(queues.queues(0).waiting_jobs(), 1);
  EXPECT_FALSE(queues.queues(0).has_limit_gpus());
}

}  // namespace
}  // namespace weft::coordinator
