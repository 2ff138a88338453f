#include "worker/trainer/testing/trainer_process.h"

#include <chrono>
#include <cmath>

#include <gmock/gmock.h>

namespace weft::trainer {
namespace {

using testing::HasSubstr;

TEST_F(TrainerProcessTest, AKilledRunResumesToTheSameBits) {
  const AttemptSpec undisturbed = Spec("undisturbed");
  ASSERT_EQ(Start(undisturbed)->Wait(), kExitDone);
  const std::vector<double> losses = Losses(undisturbed);
  ASSERT_EQ(losses.size(), 12u);
  EXPECT_LT(losses.back(), losses.front()) << "it learns";
  const Json summary = *ParseJson(*ReadFile(env_, undisturbed.run_dir + "/summary.json"));
  EXPECT_EQ(summary["steps"], 12);
  EXPECT_GT(summary["validation_loss_nats"].get<double>(), 0);
  EXPECT_GT(summary["unigram_entropy_nats"].get<double>(), 0);

  // Where a killed run resumes depends on how far its writer had come; at most where it was.
  const std::pair<const char*, int64_t> crashes[] = {{"trainer.before_step=crash@7", 4},
                                                     {"checkpoint.after_shards=crash@2", 8},
                                                     {"checkpoint.after_manifest=crash@2", 8},
                                                     {"checkpoint.after_publish=crash@2", 12},
                                                     {"checkpoint.before_write=crash@1", 0}};
  int number = 0;
  for (const auto& [failpoint, latest] : crashes) {
    AttemptSpec spec = Spec("killed" + std::to_string(++number));
    ASSERT_EQ(Start(spec, failpoint)->Wait(), -SIGKILL) << failpoint;
    spec.epoch = 2;
    auto rank = Start(spec, "", true);
    auto started = rank->Await<StartedMessage>();
    ASSERT_TRUE(started.has_value());
    EXPECT_LE(started->step, latest) << failpoint;
    EXPECT_EQ(started->step % 4, 0) << failpoint;
    auto finished = rank->Await<FinishedMessage>();
    ASSERT_TRUE(finished.has_value());
    EXPECT_EQ(rank->Wait(), kExitDone);
    EXPECT_EQ(Curve(spec), Curve(undisturbed)) << failpoint;
    EXPECT_EQ(FinalState(spec), FinalState(undisturbed)) << failpoint;
  }
}

TEST_F(TrainerProcessTest, AKilledRunInHalfPrecisionResumesToTheSameBits) {
  // With f32 masters, whose narrow copies are made anew; without; and with a loss scale that
  // overflows on both sides of the checkpoint.
  for (const std::string precision : {"bf16", "bf16_pure", "fp16"}) {
    auto in_half = [&](const std::string& run) {
      AttemptSpec spec = Spec(precision + run);
      spec.job.train.precision = spec.plan.precision = precision;
      spec.job.train.loss_scaling = {
          .initial = 0x1p40, .growth = 1024, .backoff = 0x1p-10, .growth_interval = 1};
      spec.plan.threads_per_rank = 2;
      spec.plan.block_memory_policy = {"recompute"};
      return spec;
    };
    const AttemptSpec undisturbed = in_half("undisturbed");
    auto whole = Start(undisturbed, "", true);
    const auto first = whole->Await<ProgressMessage>();
    ASSERT_TRUE(first.has_value());
    EXPECT_EQ(first->loss_scale, precision == "fp16" ? 0x1p40 : 1);
    EXPECT_EQ(first->overflow, precision == "fp16");
    ASSERT_TRUE(whole->Await<FinishedMessage>().has_value());
    ASSERT_EQ(whole->Wait(), kExitDone);
    const Json summary = *ParseJson(*ReadFile(env_, undisturbed.run_dir + "/summary.json"));
    EXPECT_EQ(summary["skipped_steps"].get<int64_t>() > 2, precision == "fp16") << summary;
    int number = 0;
    for (const char* failpoint :
         {"trainer.before_step=crash@7", "checkpoint.after_publish=crash@2"}) {
      AttemptSpec spec = in_half("killed" + std::to_string(++number));
      ASSERT_EQ(Start(spec, failpoint)->Wait(), -SIGKILL) << failpoint;
      spec.epoch = 2;
      ASSERT_EQ(Start(spec)->Wait(), kExitDone);
      EXPECT_EQ(Curve(spec), Curve(undisturbed)) << failpoint;
      EXPECT_EQ(FinalState(spec), FinalState(undisturbed)) << failpoint;
    }
  }
}

TEST_F(TrainerProcessTest, AStopSavesTheStepAndTheNextAttemptGoesOn) {
  const AttemptSpec undisturbed = Spec("undisturbed");
  ASSERT_EQ(Start(undisturbed)->Wait(), kExitDone);
  for (bool by_signal : {false, true}) {
    AttemptSpec spec = Spec(by_signal ? "signal" : "message");
    auto rank = Start(spec, "trainer.before_step=sleep:50", true);
    EXPECT_EQ(rank->Await<HelloMessage>()->epoch, 1);
    ASSERT_TRUE(rank->Await<ProgressMessage>().has_value());
    if (by_signal) {
      rank->Signal(SIGTERM);
    } else {
      rank->Send(StopMessage{});
    }
    auto stopped = rank->Await<StoppedMessage>();
    ASSERT_TRUE(stopped.has_value());
    EXPECT_EQ(rank->Wait(), kExitDone);
    EXPECT_LT(stopped->step, 12);
    EXPECT_EQ(stopped->checkpoint_path, engine::CheckpointPath(spec.run_dir, stopped->step));
    EXPECT_TRUE(engine::VerifyCheckpoint(env_, stopped->checkpoint_path).ok());
    spec.epoch = 2;
    ASSERT_EQ(Start(spec)->Wait(), kExitDone);
    EXPECT_EQ(Curve(spec), Curve(undisturbed));
  }
}

TEST_F(TrainerProcessTest, ARankWithoutItsDaemonLeavesAtOnce) {
  auto rank = Start(Spec("orphan"), "trainer.before_step=sleep:200", true);
  ASSERT_TRUE(rank->Await<ProgressMessage>().has_value());
  const auto start = std::chrono::steady_clock::now();
  rank->CloseControl();
  EXPECT_EQ(rank->Wait(), kExitOrphaned);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST_F(TrainerProcessTest, TwoRanksTrainAsOne) {
  const AttemptSpec one = Spec("one");
  ASSERT_EQ(Start(one)->Wait(), kExitDone);
  AttemptSpec two = Spec("two");
  two.world_size = 2;
  two.plan.mesh.data = 2;
  two.plan.accumulation_steps = 1;
  two.plan.bucket_bytes = 4096;
  auto first = Start(two);
  two.rank = 1;
  auto second = Start(two);
  ASSERT_EQ(first->Wait(), kExitDone);
  ASSERT_EQ(second->Wait(), kExitDone);
  const std::vector<double> expected = Losses(one);
  const std::vector<double> got = Losses(two);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-5) << i;
}

// Rank 0 dies as soon as its first checkpoint is there, so each attempt goes on from the next one.
TEST_F(TrainerProcessTest, RanksThatShareSequencesSaveOnceAndGoOnAloneOrTogether) {
  const auto attempt = [&](AttemptSpec& spec, const std::string& method, int64_t ranks,
                           const std::string& failpoint) {
    spec.world_size = spec.plan.mesh.context = spec.job.resources.context_parallel = ranks;
    spec.job.resources.context_method = ranks > 1 ? method : "ring";
    std::vector<std::unique_ptr<Rank>> processes;
    for (spec.rank = 0; spec.rank < ranks; ++spec.rank) {
      processes.push_back(Start(spec, spec.rank == 0 ? failpoint : ""));
    }
    spec.rank = 0;
    ++spec.epoch;
    const int exit_code = processes[0]->Wait();
    for (size_t rank = 1; rank < processes.size(); ++rank) {
      const int others = processes[rank]->Wait();
      // It may have nothing left to do with rank 0 when that dies.
      EXPECT_TRUE(others == kExitDone || (others == kExitRetry && exit_code != kExitDone))
          << others;
    }
    return exit_code;
  };
  const auto resumed_from = [&](const AttemptSpec& spec) {
    return (*ParseJson(*ReadFile(env_, spec.run_dir + "/summary.json")))["resumed_from_step"];
  };
  const std::string dies = "checkpoint.after_publish=crash@1";
  const auto spec_of = [&](const std::string& run) {
    AttemptSpec spec = Spec(run);
    spec.job.model.dropout = spec.job.model.attention_dropout = 0;
    return spec;
  };
  AttemptSpec alone = spec_of("alone");
  ASSERT_EQ(attempt(alone, "ring", 1, ""), kExitDone);
  const std::vector<double> expected = Losses(alone);
  ASSERT_EQ(expected.size(), 12u);

  for (const std::string method : {"ring", "ulysses"}) {
    AttemptSpec undisturbed = spec_of(method + "-undisturbed");
    ASSERT_EQ(attempt(undisturbed, method, 2, ""), kExitDone);
    EXPECT_THAT(Losses(undisturbed), testing::Pointwise(testing::DoubleNear(1e-5), expected));

    AttemptSpec killed = spec_of(method + "-killed");
    ASSERT_EQ(attempt(killed, method, 2, dies), -SIGKILL);
    ASSERT_EQ(attempt(killed, method, 2, ""), kExitDone);
    EXPECT_EQ(resumed_from(killed), 4);
    EXPECT_EQ(Curve(killed), Curve(undisturbed));
    EXPECT_EQ(FinalState(killed), FinalState(undisturbed));  // the only file of state

    AttemptSpec changing = spec_of(method + "-changing");
    ASSERT_EQ(attempt(changing, method, 2, dies), -SIGKILL);
    ASSERT_EQ(attempt(changing, method, 1, dies), -SIGKILL);
    ASSERT_EQ(attempt(changing, method, 2, ""), kExitDone);
    EXPECT_EQ(resumed_from(changing), 8);
    EXPECT_THAT(Losses(changing), testing::Pointwise(testing::DoubleNear(1e-5), expected));
    EXPECT_EQ(FinalState(changing).size(), FinalState(alone).size());
  }
}

class LostRankTest : public TrainerProcessTest {
 protected:
  /// Kills the second one of two ranks in its seventh step.
  void ExpectTheOtherLeavesForARetry(AttemptSpec spec) {
    std::vector<std::unique_ptr<Rank>> ranks;
    for (spec.rank = 0; spec.rank < 2; ++spec.rank) {
      ranks.push_back(Start(spec, spec.rank == 1 ? "trainer.before_step=crash@7" : "", true));
    }
    ServeStore(ranks);
    EXPECT_EQ(ranks[1]->Wait(), -SIGKILL);
    auto failed = ranks[0]->Await<FailedMessage>();
    ASSERT_TRUE(failed.has_value());
    EXPECT_EQ(failed->code, "UNAVAILABLE");
    EXPECT_EQ(ranks[0]->Wait(), kExitRetry);
  }
};

TEST_F(LostRankTest, LeavesTheOtherToRetryAndTheJobResumes) {
  AttemptSpec spec = Spec("pair");
  spec.world_size = 2;
  spec.plan.mesh.data = 2;
  spec.plan.accumulation_steps = 1;
  ExpectTheOtherLeavesForARetry(spec);

  std::vector<std::unique_ptr<Rank>> ranks;
  spec.epoch = 2;
  for (spec.rank = 0; spec.rank < 2; ++spec.rank) ranks.push_back(Start(spec, "", true));
  ServeStore(ranks);
  EXPECT_TRUE(ranks[0]->Await<FinishedMessage>().has_value());
  EXPECT_EQ(ranks[0]->Wait(), kExitDone);
  EXPECT_EQ(ranks[1]->Wait(), kExitDone);
  EXPECT_EQ(Losses(spec).size(), 12u);
}

TEST_F(LostRankTest, StopsOthersWhoseCopiesToTheHostAreInFlight) {
  AttemptSpec shards = Spec("shards"), stages = Spec("stages");
  shards.plan.mesh.tensor = stages.plan.mesh.pipeline = 2;
  stages.plan.stage_blocks = {1, 1};
  for (AttemptSpec spec : {shards, stages}) {
    SCOPED_TRACE(spec.job_id);
    spec.world_size = 2;
    spec.job.model.layers = 2;
    spec.job.checkpoint.every_steps = 0;
    spec.plan.offload_optimizer = spec.plan.offload_activations = "host";
    spec.plan.host_link_bytes_per_second = 5'000'000;
    ExpectTheOtherLeavesForARetry(spec);
  }
}

TEST_F(TrainerProcessTest, TheLossOfAMachineLosesNoStepThatItsPeerHasKept) {
  const auto pair = [&](const std::string& name) {
    AttemptSpec spec = Spec(name);
    spec.world_size = 2;
    spec.plan.mesh.data = 2;
    spec.plan.zero_stage = spec.job.resources.zero_stage = 1;
    spec.plan.accumulation_steps = 1;
    spec.plan.rank_workers = {"a", "b"};
    spec.job.checkpoint.every_steps = 0;
    spec.job.checkpoint.keep_last = 100;
    return spec;
  };
  const auto run = [&](AttemptSpec spec, const std::string& crash, int lost) {
    std::vector<std::unique_ptr<Rank>> ranks;
    for (spec.rank = 0; spec.rank < 2; ++spec.rank) {
      const std::string memory = root_ + "/memory-" + spec.job_id + std::to_string(spec.rank);
      std::filesystem::create_directories(memory);
      if (spec.job.checkpoint.peer_every_steps > 0) spec.memory_dir = memory;
      ranks.push_back(Start(spec, spec.rank == lost ? crash : ""));
    }
    for (int rank : {0, 1}) {
      EXPECT_EQ(ranks[static_cast<size_t>(rank)]->Wait(), crash.empty()  ? kExitDone
                                                          : rank == lost ? -SIGKILL
                                                                         : kExitRetry);
    }
  };
  const AttemptSpec undisturbed = pair("undisturbed");
  run(undisturbed, "", 0);
  for (int lost : {0, 1}) {
    SCOPED_TRACE("rank " + std::to_string(lost) + " is lost with its machine");
    AttemptSpec spec = pair("lost-" + std::to_string(lost));
    spec.job.checkpoint.peer_every_steps = 1;
    run(spec, "trainer.before_step=crash@8", lost);
    std::filesystem::remove_all(root_ + "/memory-" + spec.job_id + std::to_string(lost));
    spec.epoch = 2;
    run(spec, "", 0);
    std::vector<std::string> folders = Checkpoints(spec);
    std::sort(folders.begin(), folders.end());
    EXPECT_EQ(folders, (std::vector<std::string>{"step-00000007", "step-00000012"}))
        << "all seven steps were kept";
    EXPECT_EQ(Curve(spec), Curve(undisturbed)) << "and not a bit is another one";
  }
}

TEST_F(TrainerProcessTest, RanksSaveAsOftenAsTheFirstOneFindsBest) {
  // Both save, as they shard the optimizer's state: one that did not follow would be waited for.
  const auto run = [&](const std::string& name, const std::string& interval) {
    AttemptSpec spec = Spec(name);
    spec.world_size = 2;
    spec.plan.mesh.data = 2;
    spec.plan.zero_stage = spec.job.resources.zero_stage = 1;
    spec.plan.accumulation_steps = 1;
    spec.job.checkpoint.interval = interval;
    spec.job.checkpoint.keep_last = 100;
    spec.mean_seconds_between_failures = 1e9;
    std::vector<std::unique_ptr<Rank>> ranks;
    for (spec.rank = 0; spec.rank < 2; ++spec.rank) {
      ranks.push_back(Start(spec, "trainer.before_step=sleep:300"));  // longer than a save takes
    }
    for (auto& rank : ranks) EXPECT_EQ(rank->Wait(), kExitDone);
    return spec;
  };
  const AttemptSpec often = run("steps", "steps"), seldom = run("auto", "auto");
  std::vector<std::string> folders = Checkpoints(seldom);
  std::sort(folders.begin(), folders.end());
  EXPECT_EQ(folders, (std::vector<std::string>{"step-00000004", "step-00000012"}))
      << "the first by the job, and then none until the end, as machines hardly ever fail";
  EXPECT_GT(Checkpoints(often).size(), folders.size());
  EXPECT_EQ(Curve(often), Curve(seldom)) << "not a bit depends on it";
}

TEST_F(TrainerProcessTest, AProfileOfTwoRanksIsOneTraceAndChangesNoBit) {
  auto pair = [&](const std::string& run) {
    AttemptSpec spec = Spec(run);
    spec.world_size = 2;
    spec.plan.mesh.data = 2;
    spec.plan.accumulation_steps = 1;
    return spec;
  };
  AttemptSpec undisturbed = pair("undisturbed");
  auto first = Start(undisturbed);
  undisturbed.rank = 1;
  auto second = Start(undisturbed);
  ASSERT_EQ(first->Wait(), kExitDone);
  ASSERT_EQ(second->Wait(), kExitDone);

  AttemptSpec spec = pair("profiled");
  std::vector<std::unique_ptr<Rank>> ranks;
  for (spec.rank = 0; spec.rank < 2; ++spec.rank) {
    ranks.push_back(Start(spec, "trainer.before_step=sleep:20", true));
  }
  ServeStore(ranks);
  ranks[0]->Send(ProfileMessage{3});
  auto profiled = ranks[0]->Await<ProfiledMessage>();
  ASSERT_TRUE(profiled.has_value());
  EXPECT_EQ(profiled->error, "");
  const ProfileReport& report = profiled->report;
  EXPECT_EQ(report.steps, 3);
  EXPECT_EQ(report.ranks, 2);
  std::map<std::string, ProfileOperation> rows;
  for (const ProfileOperation& row : report.operations) rows[row.name] = row;
  double operations = 0;
  for (const auto& [name, row] : rows) operations += row.kind == "operation" ? row.share : 0;
  EXPECT_GT(operations, 0.0);
  EXPECT_LT(operations, 1.0);
  EXPECT_GT(rows["linear forward"].flops_per_second.value_or(0), 0);
  EXPECT_GT(rows["attention backward"].flops_per_second.value_or(0), 0);
  EXPECT_GT(rows["all-reduce gradients"].bytes_per_second.value_or(0), 0);
  EXPECT_EQ(rows["update"].calls_per_step, 1);
  EXPECT_EQ(rows["step"].calls_per_step, 1);
  EXPECT_TRUE(ranks[0]->Await<FinishedMessage>().has_value());
  EXPECT_EQ(ranks[0]->Wait(), kExitDone);
  EXPECT_EQ(ranks[1]->Wait(), kExitDone);
  EXPECT_EQ(Curve(spec), Curve(undisturbed));

  const Json trace = *ParseJson(*ReadFile(env_, report.trace_path));
  std::map<int, int> steps;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("name") == "step") ++steps[event.at("pid").get<int>()];
  }
  EXPECT_EQ(steps, (std::map<int, int>{{0, 3}, {1, 3}}));
}

TEST_F(TrainerProcessTest, BadDataOfOneRankTakesAllBackAndIsLeftOut) {
  auto guarded = [&](const std::string& run) {
    AttemptSpec spec = Spec(run);
    spec.job.train.guard.skips_before_rollback = 1;
    spec.world_size = 2;
    spec.plan.mesh.data = 2;
    spec.plan.accumulation_steps = 1;
    return spec;
  };
  // Rank 1's loss is infinite in its seventh step; the newest checkpoint is of the fourth.
  auto run = [&](AttemptSpec spec, const std::string& of_rank_1) {
    std::vector<std::unique_ptr<Rank>> ranks;
    for (spec.rank = 0; spec.rank < 2; ++spec.rank) {
      ranks.push_back(Start(spec, spec.rank == 1 ? of_rank_1 : "", true));
    }
    ServeStore(ranks);
    return ranks;
  };
  const AttemptSpec undisturbed = guarded("undisturbed");
  for (const auto& rank : run(undisturbed, "")) EXPECT_EQ(rank->Wait(), kExitDone);

  const AttemptSpec spec = guarded("guarded");
  auto ranks = run(spec, "trainer.loss=error@7");
  std::string events;
  std::optional<ProgressMessage> last;
  while (std::optional<RankMessage> message = ranks[0]->Next()) {
    if (auto* event = std::get_if<EventMessage>(&*message)) events += event->text + "\n";
    if (auto* progress = std::get_if<ProgressMessage>(&*message)) last = *progress;
    if (std::holds_alternative<FinishedMessage>(*message)) break;
  }
  for (const auto& rank : ranks) EXPECT_EQ(rank->Wait(), kExitDone);
  EXPECT_THAT(events, HasSubstr("step 7: the loss or a gradient is not finite"));
  EXPECT_THAT(events, HasSubstr("went back from step 7 to step 4"));
  EXPECT_THAT(events, HasSubstr("rollback 1 of 3"));
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ(last->rollbacks, 1);
  EXPECT_EQ(last->skipped_steps, 1);
  const std::vector<double> expected = Losses(undisturbed);
  const std::vector<double> losses = Losses(spec);
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(losses[i], expected[i]) << i;
  EXPECT_NE(losses[4], expected[4]) << "other data";

  // Killed after the rollback and before the next checkpoint, it goes on with the same data.
  AttemptSpec killed = guarded("killed");
  ranks = run(killed, "trainer.loss=error@7,trainer.before_step=crash@10");
  EXPECT_EQ(ranks[1]->Wait(), -SIGKILL);
  EXPECT_EQ(ranks[0]->Wait(), kExitRetry);
  ranks.clear();
  killed.epoch = 2;
  for (const auto& rank : run(killed, "")) EXPECT_EQ(rank->Wait(), kExitDone);
  EXPECT_EQ(Curve(killed), Curve(spec));
  EXPECT_EQ(FinalState(killed), FinalState(spec));
}

TEST_F(TrainerProcessTest, ATrainingThatNeverRecoversFailsAfterItsRollbacks) {
  AttemptSpec spec = Spec("hopeless");
  spec.job.train.guard.skips_before_rollback = 2;
  spec.job.train.guard.max_rollbacks = 2;
  auto rank = Start(spec, "trainer.loss=error", true);
  auto failed = rank->Await<FailedMessage>();
  ASSERT_TRUE(failed.has_value());
  EXPECT_TRUE(failed->numerics);
  EXPECT_THAT(failed->message, HasSubstr("after 2 of 2 rollbacks"));
  EXPECT_EQ(rank->Wait(), kExitUserError);
  EXPECT_EQ(Losses(spec).size(), 2u);
}

TEST_F(TrainerProcessTest, WhatTheUserGotWrongIsNotRetried) {
  auto expect_user_error = [&](const AttemptSpec& spec, const std::string& text) {
    const FailedMessage failed = Fail(spec, kExitUserError);
    EXPECT_EQ(failed.code, "INVALID");
    EXPECT_THAT(failed.message, HasSubstr(text));
  };
  AttemptSpec no_file = Spec("no_file");
  no_file.job.data.train = {root_ + "/absent.txt"};
  expect_user_error(no_file, "absent.txt");
  AttemptSpec small_vocabulary = Spec("small_vocabulary");
  small_vocabulary.job.model.vocab_size = 100;
  expect_user_error(small_vocabulary, "model.vocab_size");
  AttemptSpec bad_plan = Spec("bad_plan");
  bad_plan.plan.micro_batch = 3;
  expect_user_error(bad_plan, "micro_batch");

  ASSERT_TRUE(WriteFileAtomic(env_, root_ + "/broken.json", "{\"job_id\": 3").ok());
  EXPECT_EQ(Rank(root_ + "/broken.json", "", false).Wait(), kExitUsage);
  EXPECT_EQ(Rank(root_ + "/absent.json", "", false).Wait(), kExitUsage);
}

TEST_F(TrainerProcessTest, ADamagedCheckpointIsPassedOverAndAReplacedAttemptRefused) {
  const AttemptSpec undisturbed = Spec("undisturbed");
  ASSERT_EQ(Start(undisturbed)->Wait(), kExitDone);
  AttemptSpec spec = Spec("damaged");
  std::string newest;
  for (spec.epoch = 1; spec.epoch <= 2; ++spec.epoch) {  // stopped twice: two checkpoints
    auto rank = Start(spec, "trainer.before_step=sleep:50", true);
    ASSERT_TRUE(rank->Await<ProgressMessage>().has_value());
    rank->Send(StopMessage{});
    auto stopped = rank->Await<StoppedMessage>();
    ASSERT_TRUE(stopped.has_value());
    newest = stopped->checkpoint_path;
    ASSERT_EQ(rank->Wait(), kExitDone);
  }
  const std::string shard = newest + "/state-00000-of-00001.safetensors";
  std::string bytes = *ReadFile(env_, shard);
  bytes[bytes.size() / 2] ^= 1;
  ASSERT_TRUE(WriteFileAtomic(env_, shard, bytes).ok());

  spec.epoch = 3;
  auto rank = Start(spec, "", true);
  auto event = rank->Await<EventMessage>();
  ASSERT_TRUE(event.has_value());
  EXPECT_THAT(event->text, HasSubstr(shard));
  EXPECT_TRUE(rank->Await<FinishedMessage>().has_value());
  EXPECT_EQ(rank->Wait(), kExitDone);
  EXPECT_EQ(Curve(spec), Curve(undisturbed));
  EXPECT_EQ(FinalState(spec), FinalState(undisturbed));

  spec.epoch = 2;
  auto zombie = Start(spec, "", true);
  auto failed = zombie->Await<FailedMessage>();
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->code, "CONFLICT");
  EXPECT_EQ(zombie->Wait(), kExitRetry);
}

}  // namespace
}  // namespace weft::trainer
