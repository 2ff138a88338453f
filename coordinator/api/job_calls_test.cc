// What a client of the Coordinator service can ask for.
#include <atomic>

#include "common/clock.h"
#include "common/env.h"
#include "common/json.h"
#include "coordinator/api/testing.h"

namespace weft::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(ApiTest, AJobRunsFromSubmitToSuccess) {
  auto worker = Worker(FakeWorker::Hello("a"));
  ASSERT_TRUE(worker->Await(kRegistered));
  v1::JobSpec spec = Spec(2);
  spec.mutable_train()->set_steps(7);
  std::string id = MustSubmit(spec);
  EXPECT_THAT(id, testing::MatchesRegex("tiny-[0-9a-z]{5}"));
  auto start = worker->Await(kStart);
  ASSERT_TRUE(start);
  EXPECT_EQ(start->start().job_id(), id);
  EXPECT_EQ(start->start().epoch(), 1);
  EXPECT_EQ(start->start().world_size(), 2);
  EXPECT_THAT(start->start().ranks(), ElementsAre(0, 1));
  EXPECT_EQ(start->start().run_dir(), "/runs/" + id);
  EXPECT_EQ(Get(id).state(), v1::STARTING);
  worker->Report(id, 1, v1::ATTEMPT_STARTED);
  worker->Report(id, 1, v1::ATTEMPT_TRAINING);
  AwaitState(id, {v1::RUNNING});
  worker->Heartbeat(id, 1, 7);
  ASSERT_TRUE(worker->Await(v1::CoordinatorMessage::kHeartbeatAck));
  EXPECT_EQ(Get(id.substr(0, 6)).progress().step(), 7);
  v1::WorkerMessage finished;
  finished.mutable_attempt()->set_job_id(id);
  finished.mutable_attempt()->set_epoch(1);
  finished.mutable_attempt()->set_state(v1::ATTEMPT_FINISHED);
  finished.mutable_attempt()->set_summary_json("{\"loss\":1}");
  worker->Send(finished);
  v1::Job job = AwaitState(id, {v1::SUCCEEDED});
  EXPECT_EQ(job.summary_json(), "{\"loss\":1}");
  EXPECT_EQ(job.progress().step(), 7);
  EXPECT_EQ(job.attempts(0).last_step(), 7);
  EXPECT_TRUE(job.has_ended_at());
}

TEST_F(ApiTest, FromSubmitToStartTakesNoTick) {
  auto worker = Worker(FakeWorker::Hello("a", 64));
  ASSERT_TRUE(worker->Await(kRegistered));
  std::vector<double> took;
  for (int i = 0; i < 20; ++i) {
    auto begin = std::chrono::steady_clock::now();
    MustSubmit(Spec());
    ASSERT_TRUE(worker->Await(kStart));
    took.push_back(SecondsSince(begin));
  }
  std::sort(took.begin(), took.end());
  std::printf("submit to StartAttempt: median %.1f ms, worst of %zu %.1f ms\n", took[10] * 1e3,
              took.size(), took.back() * 1e3);
  EXPECT_LT(took[10], 0.05);
}

TEST_F(ApiTest, OneRequestIdSubmittedTwiceIsOneJob) {
  v1::SubmitJobResponse first;
  v1::SubmitJobResponse second;
  ASSERT_TRUE(Submit(Spec(), "same", first).ok());
  ASSERT_TRUE(Submit(Spec(), "same", second).ok());
  EXPECT_FALSE(first.already_submitted());
  EXPECT_TRUE(second.already_submitted());
  EXPECT_EQ(first.job().id(), second.job().id());
  Restart();
  ASSERT_TRUE(Submit(Spec(), "same", second).ok());
  EXPECT_EQ(first.job().id(), second.job().id());
}

TEST_F(ApiTest, AWarmupThatTheRequestDoesNotHaveFitsTheSteps) {
  v1::JobSpec spec = Spec();
  spec.mutable_train()->set_steps(20);
  spec.mutable_schedule()->clear_warmup_steps();
  v1::SubmitJobResponse response;
  ASSERT_TRUE(Submit(spec, "x", response).ok());
  EXPECT_EQ(response.job().spec().schedule().warmup_steps(), 2);
  spec.mutable_schedule()->set_warmup_steps(100);
  EXPECT_THAT(Submit(spec, "y", response).error_message(), HasSubstr("schedule.warmup_steps 100"));
}

TEST_F(ApiTest, DataThatAreHereAreLookedAt) {
  const std::string path = testing::TempDir() + "looked_at.jsonl";
  ASSERT_TRUE(WriteFileAtomic(Env::Posix(), path, "{\"text\":\"a\"}\n{broken\n").ok());
  v1::JobSpec spec = Spec();
  spec.mutable_data()->set_train(0, path);
  v1::SubmitJobResponse response;
  const grpc::Status status = Submit(spec, "x", response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("data.train[0]: " + path + ":2: "));
  spec.mutable_data()->set_train(0, "~/a.txt");
  EXPECT_THAT(Submit(spec, "x", response).error_message(), HasSubstr("by the command line"));
  spec.mutable_data()->set_train(0, "/only/on/the/workers.txt");
  EXPECT_TRUE(Submit(spec, "x", response).ok());
  ASSERT_TRUE(Env::Posix().RemoveFile(path).ok());
}

TEST_F(ApiTest, AModelThatCannotBeImportedIsRefusedWithTheFolderAndTheReason) {
  const std::string start = WEFT_SOURCE_DIR "/tests/parity/testdata/gpt2/start";
  const std::string missing = (dir_ / "nowhere").string();
  const std::string empty = (dir_ / "empty").string();
  std::filesystem::create_directories(empty);
  v1::JobSpec spec = Spec();
  spec.mutable_train()->set_sequence_length(25);
  spec.mutable_data()->mutable_tokenizer()->set_path(start);
  v1::SubmitJobResponse response;
  const auto refusal = [&](const std::string& folder) {
    spec.mutable_model()->set_import_path(folder);
    const grpc::Status status = Submit(spec, "x", response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << folder;
    return status.error_message();
  };
  EXPECT_EQ(refusal(missing), "model.import_path: there is no folder " + missing +
                                  "; hint: the folder must be readable here and on the workers");
  EXPECT_EQ(refusal(empty), "model.import_path: " + empty +
                                " has no config.json; hint: the folder must hold config.json and "
                                "the weights as safetensors");
  EXPECT_EQ(refusal(start),
            "model.import_path: train.sequence_length 25 is longer than the context 24 of the "
            "model in " +
                start);
  spec.mutable_train()->set_sequence_length(24);
  const std::string pickle = (dir_ / "pickle").string();
  std::filesystem::create_directories(pickle);
  std::filesystem::copy(start + "/config.json", pickle);
  std::filesystem::copy(start + "/model.safetensors", pickle + "/pytorch_model.bin");
  EXPECT_THAT(refusal(pickle), HasSubstr("PyTorch pickles (pytorch_model.bin)"));
  spec.mutable_model()->set_import_path(start);
  EXPECT_TRUE(Submit(spec, "x", response).ok()) << "nothing was stored under this request id";
  EXPECT_EQ(response.job().spec().model().width(), 32);
}

TEST_F(ApiTest, BadRequestsAreRefusedWithTheReason) {
  v1::SubmitJobResponse response;
  v1::JobSpec spec = Spec();
  spec.mutable_train()->set_precision("fp7");
  grpc::Status status = Submit(spec, "x", response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("train.precision"));
  spec = Spec();
  spec.mutable_model()->set_width(7);
  EXPECT_EQ(Submit(spec, "x", response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Submit(Spec(), "", response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  grpc::ClientContext context;
  v1::GetJobRequest request;
  request.set_id("nobody");
  v1::Job job;
  EXPECT_EQ(jobs_->GetJob(&context, request, &job).error_code(), grpc::StatusCode::NOT_FOUND);
  MustSubmit(Spec());
  MustSubmit(Spec());
  grpc::ClientContext context2;
  request.set_id("tiny-");
  status = jobs_->GetJob(&context2, request, &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("several jobs"));
}

TEST_F(ApiTest, AWaitingJobSaysWhatItWaitsFor) {
  std::string id = MustSubmit(Spec(2));
  v1::Job job = AwaitState(id, {v1::QUEUED});
  for (int i = 0; i < 50 && job.reason() != v1::WAITING_FOR_WORKERS; ++i) {
    std::this_thread::sleep_for(milliseconds(5));
    job = Get(id);
  }
  EXPECT_EQ(job.reason(), v1::WAITING_FOR_WORKERS);
  auto worker = Worker(FakeWorker::Hello("a"));
  ASSERT_TRUE(worker->Await(kStart));
  std::string next = MustSubmit(Spec(2));
  for (int i = 0; i < 50 && job.reason() != v1::WAITING_FOR_CAPACITY; ++i) {
    std::this_thread::sleep_for(milliseconds(5));
    job = Get(next);
  }
  EXPECT_EQ(job.reason(), v1::WAITING_FOR_CAPACITY);
}

TEST_F(ApiTest, AUserErrorIsNotRetriedAndAttemptsRunOut) {
  auto worker = Worker(FakeWorker::Hello("a"));
  std::string id = MustSubmit(Spec());
  ASSERT_TRUE(worker->Await(kStart));
  worker->Report(id, 1, v1::ATTEMPT_FAILED, v1::USER_ERROR);
  v1::Job job = AwaitState(id, {v1::FAILED});
  EXPECT_EQ(job.reason(), v1::USER_ERROR);
  EXPECT_THAT(job.message(), HasSubstr("said the worker"));
  id = MustSubmit(Spec(1, 2));
  for (int epoch = 1; epoch <= 2; ++epoch) {
    ASSERT_TRUE(worker->Await(kStart));
    worker->Report(id, epoch, v1::ATTEMPT_FAILED, v1::RANK_DIED);
  }
  job = AwaitState(id, {v1::FAILED});
  EXPECT_EQ(job.reason(), v1::RETRIES_EXHAUSTED);
  EXPECT_EQ(job.attempts_size(), 2);
}

TEST_F(ApiTest, CancelStopsTheRanksAndRetryRunsTheJobAgain) {
  auto worker = Worker(FakeWorker::Hello("a"));
  std::string id = MustSubmit(Spec());
  ASSERT_TRUE(worker->Await(kStart));
  worker->Report(id, 1, v1::ATTEMPT_TRAINING);
  AwaitState(id, {v1::RUNNING});
  v1::Job job;
  {
    grpc::ClientContext context;
    v1::CancelJobRequest request;
    request.set_id(id);
    ASSERT_TRUE(jobs_->CancelJob(&context, request, &job).ok());
    EXPECT_EQ(job.state(), v1::CANCELLING);
  }
  auto stop = worker->Await(kStop);
  ASSERT_TRUE(stop);
  EXPECT_TRUE(stop->stop().graceful());
  worker->Report(id, 1, v1::ATTEMPT_STOPPED);
  EXPECT_EQ(AwaitState(id, {v1::CANCELLED}).reason(), v1::CANCELLED_BY_USER);
  grpc::ClientContext context;
  v1::RetryJobRequest request;
  request.set_id(id);
  ASSERT_TRUE(jobs_->RetryJob(&context, request, &job).ok());
  auto start = worker->Await(kStart);
  ASSERT_TRUE(start);
  EXPECT_EQ(start->start().epoch(), 2);
  grpc::ClientContext again;
  EXPECT_EQ(jobs_->RetryJob(&again, request, &job).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(ApiTest, CheckpointsWorkersAndPlansAreListed) {
  auto worker = Worker(FakeWorker::Hello("a"));
  std::string id = MustSubmit(Spec());
  ASSERT_TRUE(worker->Await(kStart));
  v1::WorkerMessage message;
  auto* checkpoint = message.mutable_checkpoint()->mutable_checkpoint();
  checkpoint->set_job_id(id);
  checkpoint->set_epoch(1);
  checkpoint->set_step(100);
  checkpoint->set_path("/runs/" + id + "/checkpoints/step-00000100");
  checkpoint->set_verified(true);
  worker->Send(message);
  worker->Log(id, 1, 1, {"barrier"});
  ASSERT_TRUE(worker->Await(kLogAck));
  grpc::ClientContext c1;
  v1::ListCheckpointsRequest list;
  list.set_job_id(id);
  v1::ListCheckpointsResponse checkpoints;
  ASSERT_TRUE(jobs_->ListCheckpoints(&c1, list, &checkpoints).ok());
  ASSERT_EQ(checkpoints.checkpoints_size(), 1);
  EXPECT_EQ(checkpoints.checkpoints(0).step(), 100);
  grpc::ClientContext c2;
  v1::ListWorkersResponse workers;
  ASSERT_TRUE(jobs_->ListWorkers(&c2, {}, &workers).ok());
  ASSERT_EQ(workers.workers_size(), 1);
  EXPECT_EQ(workers.workers(0).state(), v1::READY);
  EXPECT_THAT(workers.workers(0).job_ids(), ElementsAre(id));
  grpc::ClientContext c3;
  v1::PlanJobRequest plan;
  *plan.mutable_spec() = Spec(2);
  v1::PlanReport report;
  ASSERT_TRUE(jobs_->PlanJob(&c3, plan, &report).ok());
  EXPECT_THAT(report.candidates(0).plan().rank_workers(), ElementsAre("a", "a"));
}

TEST_F(ApiTest, PlansAreExplained) {
  v1::ExplainPlanRequest request;
  *request.mutable_spec() = Spec(2);
  v1::WorkerProfile* machine = request.mutable_cluster()->add_workers();
  machine->set_worker_id("m");
  machine->set_device("cpu");
  machine->set_cores(2);
  machine->set_memory_bytes(int64_t{64} << 30);
  machine->set_memory_limit_bytes(int64_t{64} << 30);
  request.mutable_query()->set_top(1);
  v1::MachineCost* cost = request.mutable_query()->mutable_costs()->add_machines();
  cost->set_price_per_hour(3);
  grpc::ClientContext c1;
  v1::ExplainPlanResponse response;
  const grpc::Status status = jobs_->ExplainPlan(&c1, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const Result<Json> report = ParseJson(response.report_json());
  ASSERT_TRUE(report.ok());
  ASSERT_EQ(report->at("candidates").size(), 1);
  EXPECT_EQ(report->at("details")[0].at("price_per_hour"), 3);
  EXPECT_GT(report->at("planning_seconds"), 0);
  EXPECT_FALSE(report->at("alternatives").empty());

  EXPECT_TRUE(report->at("measure").at("runs").empty());

  request.mutable_query()->set_measure(1);
  grpc::ClientContext c3;
  ASSERT_TRUE(jobs_->ExplainPlan(&c3, request, &response).ok());
  const Result<Json> advice = ParseJson(response.report_json());
  ASSERT_TRUE(advice.ok());
  const Json& measure = advice->at("measure");
  ASSERT_EQ(measure.at("runs").size(), 1);
  EXPECT_LT(measure.at("runs")[0].at("deviation"), measure.at("deviation"));
  EXPECT_EQ(measure.at("runs")[0].at("spec").at("resources").at("ranks"), 2);

  request.mutable_query()->set_goal("best");
  grpc::ClientContext c2;
  const grpc::Status refused = jobs_->ExplainPlan(&c2, request, &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr("goal"));
}

TEST_F(ApiTest, ManySubmissionsShareCommits) {
  constexpr int kThreads = 16;
  constexpr int kEach = 25;
  auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  std::atomic<int> accepted = 0;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        v1::SubmitJobResponse response;
        if (Submit(Spec(), std::to_string(t) + "-" + std::to_string(i), response).ok()) ++accepted;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(accepted, kThreads * kEach);
  EXPECT_EQ(coordinator_->Metric("weft_coord_jobs_submitted_total"), kThreads * kEach);
  std::printf("%d submissions over %d connections' worth of threads: %.0f/s\n", accepted.load(),
              kThreads, accepted / took.count());
  grpc::ClientContext context;
  v1::ListJobsRequest request;
  request.set_page_size(300);
  v1::ListJobsResponse page;
  ASSERT_TRUE(jobs_->ListJobs(&context, request, &page).ok());
  EXPECT_EQ(page.jobs_size(), 300);
  grpc::ClientContext context2;
  request.set_page_token(page.next_page_token());
  v1::ListJobsResponse rest;
  ASSERT_TRUE(jobs_->ListJobs(&context2, request, &rest).ok());
  EXPECT_EQ(rest.jobs_size(), 100);
  EXPECT_EQ(rest.next_page_token(), "");
}

}  // namespace
}  // namespace weft::coordinator
