// The search over meshes finds what trying each mesh by itself finds.
#include "coordinator/planner/meshes.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/rng.h"
#include "common/spec/spec_json.h"
#include "coordinator/planner/best_first.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/search.h"

namespace weft::planner {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

JobSpec Job() {
  JobSpec job;
  job.name = "job";
  job.data.train = {"a.txt"};
  job.model.layers = 4;
  job.model.width = 256;
  job.model.heads = 4;
  job.model.vocab_size = 1024;
  job.model.context = 256;
  job.train.sequence_length = 256;
  job.train.global_batch = 8;
  job.train.precision = "fp32";
  job.resources.threads_per_rank = 1;
  return job;
}

ClusterProfile Cluster(int workers, int64_t cores, int64_t memory, double link) {
  ClusterProfile cluster;
  for (int i = 0; i < workers; ++i) {
    WorkerProfile worker;
    worker.worker_id = "w" + std::to_string(i);
    worker.isa = "avx2";
    worker.cores = cores;
    worker.memory_bytes = worker.memory_limit_bytes = memory;
    worker.loopback_bytes_per_second = link;
    cluster.workers.push_back(worker);
  }
  return cluster;
}

/// What of it differs from a job's that asks for nothing.
std::string KeyOf(const ResourceSpec& resources) {
  const Json own = ToJson(resources), plain = ToJson(Job().resources);
  std::string key;
  for (const auto& [name, value] : own.items()) {
    if (value != plain.at(name)) key += name + ": " + value.dump() + "; ";
  }
  return key;
}

/// `job` with each of its meshes.
std::vector<JobSpec> JobsWithMeshes(const JobSpec& job, const ClusterProfile& cluster) {
  std::vector<JobSpec> jobs;
  for (const MeshFamily& family : MeshesOf(job, cluster)) {
    for (const SharingChoice& sharing : *family.sharings) {
      jobs.push_back(job);
      family.mesh.Put(jobs.back().resources);
      sharing.Put(jobs.back().resources);
    }
  }
  return jobs;
}

TEST(MeshesOf, HasEachThatTheJobAllowsOnceAndTheJobFirst) {
  const JobSpec job = Job();
  const ClusterProfile cluster = Cluster(1, 4, 4096 * kMiB, 1e9);
  const std::vector<JobSpec> meshes = JobsWithMeshes(job, cluster);
  EXPECT_EQ(KeyOf(meshes.front().resources), "");
  std::set<std::string> keys;
  for (const JobSpec& mesh : meshes) {
    const ResourceSpec& r = mesh.resources;
    EXPECT_TRUE(ValidateJob(mesh).ok());
    EXPECT_LE(r.tensor_parallel * r.pipeline_parallel * r.context_parallel, 4);
    EXPECT_TRUE(keys.insert(KeyOf(r)).second);
  }
  using Change = std::function<void(ResourceSpec&)>;
  for (const Change& change :
       {Change([](ResourceSpec& r) { r.tensor_parallel = 2, r.sequence_parallel = true; }),
        Change([](ResourceSpec& r) { r.tensor_parallel = 4, r.zero_stage = 1; }),
        Change([](ResourceSpec& r) { r.tensor_parallel = 4, r.tensor_rows = 2; }),
        Change([](ResourceSpec& r) { r.tensor_parallel = 2, r.tensor_rows = 2, r.zero_stage = 3; }),
        Change([](ResourceSpec& r) {
          r.pipeline_parallel = 2, r.pipeline_schedule = "interleaved", r.pipeline_chunks = 2;
        }),
        Change(
            [](ResourceSpec& r) { r.pipeline_parallel = 4, r.pipeline_schedule = "zero_bubble"; }),
        Change([](ResourceSpec& r) { r.tensor_parallel = r.pipeline_parallel = 2; }),
        Change([](ResourceSpec& r) { r.context_parallel = 2; }),
        Change([](ResourceSpec& r) { r.context_parallel = 4, r.context_method = "ulysses"; }),
        Change([](ResourceSpec& r) { r.context_parallel = 2, r.zero_stage = 3; }),
        Change([](ResourceSpec& r) { r.zero_stage = 3; }),
        Change([](ResourceSpec& r) { r.zero_stage = 1, r.zero_shard_ranks = 2; })}) {
    ResourceSpec resources = job.resources;
    change(resources);
    EXPECT_TRUE(keys.contains(KeyOf(resources))) << KeyOf(resources);
  }
}

/// Jobs leave the number of ranks open, or ask for one.
class RanksOfMeshes : public testing::TestWithParam<int64_t> {};

TEST_P(RanksOfMeshes, HaveEveryJobThatMayRun) {
  // Every combination of values; those stay that are allowed on six ranks.
  const ClusterProfile cluster = Cluster(1, 6, 4096 * kMiB, 1e9);
  std::set<std::string> keys;
  JobSpec job = Job();
  job.model.layers = 2;
  job.train.global_batch = 12;
  job.resources.ranks = GetParam();
  const ResourceSpec asked = job.resources;
  ResourceSpec& r = job.resources;
  for (r.tensor_parallel = 1; r.tensor_parallel <= 6; ++r.tensor_parallel) {
    for (r.tensor_rows = 1; r.tensor_rows <= 6; ++r.tensor_rows) {
      for (r.context_parallel = 1; r.context_parallel <= 6; ++r.context_parallel) {
        for (const char* method : {"ring", "ulysses"}) {
          r.context_method = method;
          for (r.pipeline_parallel = 1; r.pipeline_parallel <= 2; ++r.pipeline_parallel) {
            for (const char* schedule : {"1f1b", "zero_bubble", "interleaved"}) {
              r.pipeline_schedule = schedule;
              for (r.pipeline_chunks = 1; r.pipeline_chunks <= 2; ++r.pipeline_chunks) {
                const int64_t replica =
                    r.tensor_parallel * r.context_parallel * r.pipeline_parallel;
                if (replica > 6) continue;
                for (r.zero_stage = 0; r.zero_stage <= 3; ++r.zero_stage) {
                  for (const int64_t group : {0, 2, 3, 4, 6}) {
                    if (group * 2 * r.tensor_parallel * r.pipeline_parallel > 6) continue;
                    r.zero_shard_ranks = group;
                    for (const bool sequence : {false, true}) {
                      r.sequence_parallel = sequence;
                      if (ValidateJob(job).ok()) keys.insert(KeyOf(r));
                    }
                  }
                }
              }
            }
          }
        }
      }
    }
  }
  job.resources = asked;
  std::set<std::string> found;
  for (const JobSpec& mesh : JobsWithMeshes(job, cluster)) found.insert(KeyOf(mesh.resources));
  EXPECT_EQ(found, keys);
  EXPECT_GT(keys.size(), GetParam() == 0 ? 50u : 20u);
}

INSTANTIATE_TEST_SUITE_P(MeshesOf, RanksOfMeshes, testing::Values(0, 4, 6));

TEST(MeshesOf, ShareTokensOfSequencesAmongAsManyRanksAsDivideThem) {
  JobSpec job = Job();
  job.train.sequence_length = 4;
  bool together = false;
  for (const JobSpec& mesh : JobsWithMeshes(job, Cluster(1, 8, 4096 * kMiB, 1e9))) {
    const ResourceSpec& r = mesh.resources;
    EXPECT_TRUE(ValidateJob(mesh).ok()) << KeyOf(r);
    together |= r.sequence_parallel && r.context_parallel == 2 && r.tensor_parallel == 2;
  }
  EXPECT_TRUE(together);
}

TEST(MeshesOf, SharesMatricesOfExperts) {
  JobSpec job = Job();
  job.model.family = "llama";
  job.model.experts = 4;
  job.resources.device = "cpu";
  std::set<std::pair<int64_t, bool>> seen;  // degree of experts, with sequence parallelism
  for (const JobSpec& mesh : JobsWithMeshes(job, Cluster(1, 8, 4096 * kMiB, 1e9))) {
    const ResourceSpec& resources = mesh.resources;
    EXPECT_EQ(resources.tensor_rows, 1) << "grids have no experts";
    if (resources.tensor_parallel != 2) continue;
    seen.insert({resources.expert_parallel, resources.sequence_parallel});
  }
  for (const int64_t experts : {1, 2, 4}) {
    EXPECT_TRUE(seen.contains({experts, false})) << experts;
    EXPECT_TRUE(seen.contains({experts, true})) << experts;
  }
}

TEST(MeshesOf, SharesExpertsAmongAnyNumberOfRanksThatDividesThem) {
  JobSpec job = Job();
  job.model.family = "llama";
  job.model.experts = 6;
  job.resources.device = "cpu";
  std::set<int64_t> degrees;
  std::set<std::string> keys;
  for (const JobSpec& mesh : JobsWithMeshes(job, Cluster(1, 4, 4096 * kMiB, 1e9))) {
    EXPECT_TRUE(ValidateJob(mesh).ok());
    EXPECT_TRUE(keys.insert(KeyOf(mesh.resources)).second);
    degrees.insert(mesh.resources.expert_parallel);
  }
  // Three do not divide the batch of 8, and there is room for four.
  EXPECT_EQ(degrees, (std::set<int64_t>{1, 2}));
  job.resources.expert_parallel = 2;
  std::set<int64_t> stages;
  for (const JobSpec& mesh : JobsWithMeshes(job, Cluster(1, 4, 4096 * kMiB, 1e9))) {
    EXPECT_EQ(mesh.resources.expert_parallel, 2);
    stages.insert(mesh.resources.zero_stage);
  }
  EXPECT_EQ(stages, (std::set<int64_t>{0, 1, 2, 3})) << "with it all stages";
  std::set<std::string> schedules;
  for (const JobSpec& mesh : JobsWithMeshes(job, Cluster(1, 4, 4096 * kMiB, 1e9))) {
    if (mesh.resources.pipeline_parallel > 1) schedules.insert(mesh.resources.pipeline_schedule);
  }
  EXPECT_TRUE(schedules.contains("1f1b"));
  EXPECT_TRUE(schedules.contains("zero_bubble"));
}

/// Ways to share that any mesh of `job` on eight cores has.
std::set<std::string> ParallelismsOf(const JobSpec& job) {
  std::set<std::string> ways;
  for (const JobSpec& mesh : JobsWithMeshes(job, Cluster(1, 8, 4096 * kMiB, 1e9))) {
    const ResourceSpec& r = mesh.resources;
    EXPECT_TRUE(ValidateJob(mesh).ok()) << KeyOf(r);
    if (r.tensor_parallel > 1) ways.insert(r.tensor_rows > 1 ? "grid" : "tensor");
    if (r.pipeline_parallel > 1) ways.insert("pipeline");
    if (r.context_parallel > 1) ways.insert("context");
    if (r.expert_parallel > 1) ways.insert("expert");
    if (r.zero_stage > 0) ways.insert("zero");
  }
  return ways;
}

TEST(MeshesOf, AreThoseThatGoWithLocalStepsBitsAndCapacities) {
  JobSpec local = Job();
  local.train.local_steps = 4;
  EXPECT_EQ(ParallelismsOf(local),
            (std::set<std::string>{"tensor", "grid", "pipeline", "context"}));
  JobSpec bits = Job();
  bits.resources.activation_bits = 4;
  EXPECT_EQ(ParallelismsOf(bits),
            (std::set<std::string>{"tensor", "grid", "pipeline", "context", "zero"}));
  bits.model.family = "llama";
  bits.model.experts = 4;
  bits.model.expert_capacity = 1;
  EXPECT_EQ(ParallelismsOf(bits),
            (std::set<std::string>{"tensor", "pipeline", "context", "expert", "zero"}));
}

TEST(PlanAnyMesh, SharesExpertsWhereOneRankHasNoRoomForAll) {
  JobSpec job = Job();
  job.model.family = "llama";
  job.model.width = 512;
  job.model.experts = 8;
  job.model.experts_per_token = 1;
  job.model.expert_capacity = 1;
  job.resources.device = "cpu";
  const ClusterProfile cluster = Cluster(8, 1, 900 * kMiB, 1e9);
  EXPECT_FALSE(PlanJob(job, cluster).ok());
  const Result<PlanReport> report = PlanAnyMesh(job, cluster);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  const PlanCandidate& best = report->candidates.front();
  EXPECT_GT(best.plan.mesh.expert, 1);
  EXPECT_NE(FormatPlanReport(*report).find(std::to_string(best.plan.mesh.expert) + " expert"),
            std::string::npos);
}

TEST(MeshesOf, KeepsWhatTheJobSays) {
  JobSpec job = Job();
  job.resources.tensor_parallel = 2;
  job.resources.zero_stage = 1;
  for (const JobSpec& mesh : JobsWithMeshes(job, Cluster(1, 4, 4096 * kMiB, 1e9))) {
    EXPECT_EQ(mesh.resources.tensor_parallel, 2);
    EXPECT_EQ(mesh.resources.zero_stage, 1);
  }
}

/// Jobs and clusters of processors and of GPUs, such that memory is short now and then.
class RandomCases {
 public:
  /// `with_networks`: between machines there is now and then less than within them.
  explicit RandomCases(uint64_t seed, bool with_networks = false)
      : random_({seed, 0, 0}),
        shapes_({seed, 1, 0}),
        networks_({seed, 2, 0}),
        with_networks_(with_networks) {}

  JobSpec NextJob(bool on_devices) {
    JobSpec job = Job();
    job.model.layers = Pick({2, 3, 4, 7});
    job.model.width = on_devices ? Pick({1024, 2048}) : Pick({64, 256, 512});
    job.train.global_batch = Pick({2, 4, 8, 12, 24});
    job.train.sequence_length = Pick({64, 256});
    if (Pick({0, 1}) == 1) {
      job.model.family = "llama";
      job.model.experts = Pick({4, 6});
      job.model.experts_per_token = Pick({1, 2});
      job.resources.device = "cpu";
    }
    if (on_devices) {
      job.train.precision = "bf16";
      job.resources.device = "cuda";
    }
    return job;
  }
  ClusterProfile NextCluster(bool on_devices) {
    const int workers = static_cast<int>(Pick({1, 2, 3}));
    const auto link = static_cast<double>(Pick({10, 100, 10000})) * 1e6;
    if (!on_devices) {
      ClusterProfile cluster =
          Cluster(workers, Pick({1, 2, 4}), Pick({200, 260, 400, 4096}) * kMiB, link);
      SetNetwork(link, cluster);
      if (shapes_.Next() % 2 == 0) return cluster;
      const TimeCalibration measured = NextCalibration();
      for (WorkerProfile& worker : cluster.workers) worker.calibration = measured;
      return cluster;
    }
    ClusterProfile cluster = Cluster(workers, 8, 4096 * kMiB, 100 * link);
    const std::vector<int64_t> sizes = {300, 600, 1200, 2400, 20000};
    int64_t memory = Pick(sizes) * kMiB;
    const bool alike = Pick({0, 1}) == 1;
    for (WorkerProfile& worker : cluster.workers) {
      worker.device = "cuda";
      if (!alike) memory = Pick(sizes) * kMiB;
      for (int64_t index = 0; index < 4; ++index) {
        DeviceSpec device;
        device.index = index;
        device.compute_capability = "9.0";
        device.memory_bytes = device.memory_limit_bytes = memory;
        for (int64_t other = 0; other < 4; ++other) {
          if (other != index) device.links.push_back({other, "nvlink", true, 100 * link});
        }
        worker.devices.push_back(device);
      }
    }
    SetNetwork(100 * link, cluster);
    return cluster;
  }

 private:
  void SetNetwork(double link, ClusterProfile& cluster) {
    if (!with_networks_) return;
    const std::array<double, 3> shares = {1, 0.5, 0.05};
    const double network = link * shares[networks_.Next() % shares.size()];
    for (WorkerProfile& worker : cluster.workers) worker.network_bytes_per_second = network;
  }
  int64_t Pick(const std::vector<int64_t>& values) {
    return values[random_.Next() % values.size()];
  }
  /// Runs that took up to a third more or less time than was predicted.
  TimeCalibration NextCalibration() {
    TimeCalibration calibration;
    calibration.runs = 20;
    const auto pick = [&](const std::vector<int64_t>& values) {
      return values[shapes_.Next() % values.size()];
    };
    for (int64_t run = 0; run < calibration.runs; ++run) {
      calibration.shapes.push_back({.products = "fp32",
                                    .experts = pick({0, 4, 6}),
                                    .width = pick({64, 256, 512}),
                                    .tensor = pick({1, 1, 2, 4}),
                                    .tokens = pick({64, 128, 256, 512, 1024}),
                                    .sequence_length = pick({64, 256}),
                                    .weight = static_cast<double>(pick({-30, 10, 30}))});
    }
    return calibration;
  }

  PhiloxStream random_;
  // These streams are separate: jobs and machines are the same without runs and networks.
  PhiloxStream shapes_;
  PhiloxStream networks_;
  const bool with_networks_;
};

/// As text. What is shared among a group of all ranks is shared among all.
std::string TextOf(Plan plan) {
  if (plan.zero_shard_ranks == GradientRanks(plan.mesh)) plan.zero_shard_ranks = 0;
  return ToJson(plan).dump();
}

bool HasSeveralKindsOfGpus(const ClusterProfile& cluster) {
  std::set<int64_t> sizes;
  for (const WorkerProfile& worker : cluster.workers) {
    for (const DeviceSpec& device : worker.devices) sizes.insert(device.memory_bytes);
  }
  return sizes.size() > 1;
}

class AnyMesh : public testing::TestWithParam<bool> {};

TEST_P(AnyMesh, FindsTheFastestOfAllMeshes) {
  RandomCases cases(11);
  int beyond = 0, fit = 0, left_out = 0, grids = 0, groups = 0, pipelines = 0, experts = 0;
  int without_room = 0;
  std::set<std::string> schedules;
  for (int trial = 0; trial < 40; ++trial) {
    const JobSpec job = cases.NextJob(GetParam());
    const ClusterProfile cluster = cases.NextCluster(GetParam());
    std::map<std::string, int> plans;
    std::vector<double> all;
    for (const JobSpec& mesh : JobsWithMeshes(job, cluster)) {
      const Result<PlanReport> report = PlanJob(mesh, cluster);
      if (!report.ok()) continue;
      // Where nothing is shared, several meshes have the same plan. One mesh has it twice where
      // ranks are kept apart and have room no nearer.
      std::map<std::string, int> own;
      for (const PlanCandidate& candidate : report->candidates) {
        if (!candidate.feasible) continue;
        const std::string text = TextOf(candidate.plan);
        if (++own[text] <= plans[text]) continue;
        ++plans[text];
        all.push_back(candidate.plan.prediction.step_seconds);
      }
    }
    std::sort(all.begin(), all.end());
    const Result<PlanReport> any = PlanAnyMesh(job, cluster);
    ASSERT_EQ(any.ok(), !all.empty()) << trial << ": " << any.status().message();
    if (all.empty()) continue;
    ++fit;
    const double fastest = all.front();
    EXPECT_GE(any->candidates_considered, std::ssize(all));
    const PlanCandidate& best = any->candidates.front();
    EXPECT_DOUBLE_EQ(best.plan.prediction.step_seconds, fastest) << trial;
    if (best.reason.find("that are slower than 32 of these") != std::string::npos) ++left_out;
    if (best.reason.find("no room for what they keep") != std::string::npos) ++without_room;
    const bool untried = best.reason.find("pipelines were not tried") != std::string::npos;
    EXPECT_EQ(untried, HasSeveralKindsOfGpus(cluster) && 4 * cluster.workers.size() > 8) << trial;
    // And so on down to the last that is shown.
    for (size_t i = 0; i < any->candidates.size() && any->candidates[i].feasible; ++i) {
      EXPECT_DOUBLE_EQ(any->candidates[i].plan.prediction.step_seconds, all[i]) << trial;
      const Plan& plan = any->candidates[i].plan;
      EXPECT_GT(plans[TextOf(plan)]--, 0) << trial;
      grids += plan.tensor_rows > 1 ? 1 : 0;
      groups += plan.zero_shard_ranks > 0 ? 1 : 0;
      pipelines += plan.mesh.pipeline > 1 && RankCount(plan.mesh) > 8 ? 1 : 0;
      if (plan.mesh.pipeline > 1) schedules.insert(plan.pipeline_schedule);
      experts += plan.mesh.pipeline > 1 && plan.mesh.expert > 1 ? 1 : 0;
    }
    const Result<PlanReport> asked = PlanJob(job, cluster);
    if (!asked.ok() ||
        asked->candidates.front().plan.prediction.step_seconds > fastest * (1 + 1e-9)) {
      ++beyond;
    }
  }
  // Otherwise nothing was at stake.
  EXPECT_GT(fit, 20);
  EXPECT_GT(beyond, 5);
  EXPECT_GT(left_out, 10);
  EXPECT_GT(experts, 1);
  EXPECT_THAT(schedules, ::testing::UnorderedElementsAre("1f1b", "interleaved", "zero_bubble"));
  if (GetParam()) {
    EXPECT_GT(groups, 10);
    EXPECT_GT(pipelines, 5);
    EXPECT_GT(without_room, 5);
  } else {
    EXPECT_GT(grids, 1);
  }
}

TEST_P(AnyMesh, HasNoShorterStepThanItsBounds) {
  RandomCases cases(13, true);
  int pipelines = 0, near = 0;
  for (int trial = 0; trial < 30; ++trial) {
    const JobSpec job = cases.NextJob(GetParam());
    const ClusterProfile cluster = cases.NextCluster(GetParam());
    const JobSet jobs = *JobsOf(job, cluster, true);
    // Looks at all.
    for (const Judged& judged : BestFirst(jobs, cluster, 0, 1).Run()) {
      if (!judged.fits) continue;
      const double seconds = StepSeconds(judged.costed.time);
      ASSERT_LE(judged.candidate.least_seconds, seconds * (1 + 1e-12))
          << trial << ": " << ToJson(jobs.At(judged.mesh).resources).dump();
      if (judged.costed.pipeline == 1) continue;
      ++pipelines;
      near += judged.candidate.least_seconds > 0.9 * seconds ? 1 : 0;
    }
  }
  // Most of the time is known before a schedule is played through.
  EXPECT_GT(pipelines, 500);
  EXPECT_GT(near, pipelines / 2);
}

TEST_P(AnyMesh, IsTheSameOnAnyNumberOfThreads) {
  RandomCases cases(12);
  for (int trial = 0; trial < 20; ++trial) {
    const JobSpec job = cases.NextJob(GetParam());
    const ClusterProfile cluster = cases.NextCluster(GetParam());
    const auto text = [&](int threads) {
      const Result<PlanReport> report = PlanAnyMesh(job, cluster, threads);
      return report.ok() ? ToJson(*report).dump() : report.status().message();
    };
    const std::string alone = text(1);
    for (int threads : {2, 3, 8}) ASSERT_EQ(text(threads), alone) << trial << ", " << threads;
  }
}

INSTANTIATE_TEST_SUITE_P(OnProcessorsAndGpus, AnyMesh, testing::Values(false, true),
                         [](const auto& param) { return param.param ? "Gpus" : "Processors"; });

}  // namespace
}  // namespace weft::planner
