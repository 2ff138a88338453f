// What the planner makes of choices that a job leaves open is what trying each by itself finds.
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/rng.h"
#include "common/spec/spec_json.h"
#include "coordinator/planner/device_units.h"
#include "coordinator/planner/meshes.h"
#include "coordinator/planner/planner.h"

namespace weft::planner {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

JobSpec Job() {
  JobSpec job;
  job.name = "job";
  job.data.train = {"a.txt"};
  job.model.layers = 4;
  job.model.width = 128;
  job.model.heads = 4;
  job.model.vocab_size = 512;
  job.model.context = 256;
  job.train.sequence_length = 128;
  job.train.global_batch = 8;
  job.train.precision = "fp32";
  job.resources.device = "cpu";
  return job;
}

WorkerProfile Machine(int64_t memory) {
  WorkerProfile worker;
  worker.worker_id = "w";
  worker.isa = "avx512_bf16";
  worker.cores = 2;
  worker.memory_bytes = worker.memory_limit_bytes = memory;
  return worker;
}

void LeaveOffloadOpen(JobSpec& job) {
  ResourceSpec& resources = job.resources;
  resources.offload_optimizer = resources.offload_parameters = resources.offload_activations =
      "auto";
}

/// Each job that says what `job` leaves open of offload.
std::vector<JobSpec> EachByItself(const JobSpec& job) {
  std::vector<JobSpec> jobs;
  for (const char* optimizer : {"none", "part", "host", "nvme"}) {
    for (const char* parameters : {"none", "part", "host", "nvme"}) {
      for (const char* activations : {"none", "host"}) {
        for (const char* recompute : {"auto", "optimal"}) {
          if (recompute == std::string("optimal") && activations == std::string("none")) continue;
          JobSpec own = job;
          own.resources.offload_optimizer = optimizer;
          own.resources.offload_parameters = parameters;
          own.resources.offload_activations = activations;
          own.resources.recompute = recompute;
          const bool in_file =
              optimizer == std::string("nvme") || parameters == std::string("nvme");
          if (!in_file) own.resources.offload_directory.clear();
          const bool nothing = ToJson(own.resources).dump().find("host\"") == std::string::npos &&
                               optimizer == std::string("none");
          if (nothing) own.resources.host_link_bytes_per_second = 0;
          // Takes each set of units by itself, too; without any it is the choice of the host.
          const bool part = optimizer == std::string("part") || parameters == std::string("part");
          for (const JobSpec& each : WithUnits({own})) {
            const ResourceSpec& resources = each.resources;
            const bool none =
                resources.device_updated_units.empty() && resources.resident_units.empty();
            if (part && none) continue;
            if (ValidateJob(each).ok()) jobs.push_back(each);
          }
        }
      }
    }
  }
  return jobs;
}

/// Jobs on one machine whose devices are too small now and then, and its memory.
class RandomCases {
 public:
  JobSpec NextJob() {
    JobSpec job = Job();
    job.model.layers = Pick({2, 3});
    job.model.width = Pick({64, 128, 256});
    job.train.global_batch = Pick({4, 8, 12});
    job.train.precision = Pick({0, 1}) == 0 ? "fp32" : "bf16";
    if (Pick({0, 1, 2, 3}) == 0) job.optimizer.name = "lion";
    if (Pick({0, 1}) == 1) job.resources.micro_batch = job.train.global_batch;
    LeaveOffloadOpen(job);
    ResourceSpec& resources = job.resources;
    resources.device_memory_bytes = Pick({0, 4, 6, 9, 14, 22}) * kMiB;
    resources.host_link_bytes_per_second = Pick({0, 100, 400, 2000}) * 1'000'000;
    if (Pick({0, 1}) == 1) resources.offload_directory = "/disk";
    return job;
  }
  ClusterProfile NextCluster() {
    ClusterProfile cluster;
    const int64_t machines = Pick({1, 2});
    for (int64_t i = 0; i < machines; ++i) {
      cluster.workers.push_back(Machine(Pick({160, 240, 1024}) * kMiB));
      cluster.workers.back().worker_id += std::to_string(i);
      cluster.workers.back().disk_write_bytes_per_second =
          static_cast<double>(Pick({0, 50, 2000})) * 1e6;
    }
    return cluster;
  }

 private:
  int64_t Pick(const std::vector<int64_t>& values) {
    return values[random_.Next() % values.size()];
  }

  PhiloxStream random_{{7, 0, 0}};
};

class OpenOffload : public testing::TestWithParam<bool> {};

TEST_P(OpenOffload, IsTheFastestOfAllWays) {
  const bool any_mesh = GetParam();
  RandomCases cases;
  std::map<std::string, int> chosen;
  int fit = 0;
  // Trials of all meshes have many more plans.
  const int trials = any_mesh ? 15 : 45;
  for (int trial = 0; trial < trials; ++trial) {
    const JobSpec job = cases.NextJob();
    const ClusterProfile cluster = cases.NextCluster();
    ASSERT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
    std::map<std::string, int> plans;
    std::vector<double> all;
    for (const JobSpec& own : EachByItself(job)) {
      const Result<PlanReport> report =
          any_mesh ? PlanAnyMesh(own, cluster) : PlanJob(own, cluster);
      if (!report.ok()) continue;
      for (const PlanCandidate& candidate : report->candidates) {
        if (!candidate.feasible) continue;
        all.push_back(candidate.plan.prediction.step_seconds);
        ++plans[ToJson(candidate.plan).dump()];
      }
    }
    std::sort(all.begin(), all.end());
    const Result<PlanReport> open = any_mesh ? PlanAnyMesh(job, cluster) : PlanJob(job, cluster);
    ASSERT_EQ(open.ok(), !all.empty()) << trial << ": " << open.status().message();
    if (all.empty()) continue;
    ++fit;
    const Plan& best = open->candidates.front().plan;
    ++chosen[best.offload_optimizer + " " + best.offload_parameters + " " +
             best.offload_activations + (best.recompute_schedule.empty() ? "" : " planned")];
    for (size_t i = 0; i < open->candidates.size() && open->candidates[i].feasible; ++i) {
      const Plan& plan = open->candidates[i].plan;
      EXPECT_DOUBLE_EQ(plan.prediction.step_seconds, all[i]) << trial << ", " << i;
      EXPECT_EQ(plan.mesh.data * plan.micro_batch * plan.accumulation_steps,
                job.train.global_batch);
      EXPECT_GT(plans[ToJson(plan).dump()]--, 0) << trial << ", " << i;
    }
  }
  // Otherwise nothing was at stake.
  EXPECT_GT(fit, trials / 2);
  EXPECT_GT(chosen.size(), any_mesh ? 1u : 4u) << "ways that were chosen at least once";
}

/// Plans `job` on `worker`; the best plan, whose reason is put in `why`.
Plan BestOf(const JobSpec& job, const WorkerProfile& worker, std::string* why = nullptr) {
  const Result<PlanReport> report = PlanJob(job, {{worker}});
  EXPECT_TRUE(report.ok()) << report.status().message();
  if (!report.ok()) return {};
  if (why != nullptr) *why = report->candidates.front().reason;
  return report->candidates.front().plan;
}

TEST(OpenChoices, SayWhatResidesOutsideTheDevice) {
  JobSpec job = Job();
  std::string why;
  LeaveOffloadOpen(job);
  WorkerProfile machine = Machine(1024 * kMiB);
  EXPECT_EQ(BestOf(job, machine, &why).offload_optimizer, "none") << "there is no limit";
  EXPECT_THAT(why, HasSubstr("; all on the device"));
  // 16 bytes of each of 0.9 million numbers are too many.
  job.resources.device_memory_bytes = 12 * kMiB;
  const Plan plan = BestOf(job, machine, &why);
  EXPECT_EQ(plan.offload_optimizer, "host");
  EXPECT_THAT(why, HasSubstr("; outside the device: optimizer on the host"));
  // As the plan of a job that says so.
  JobSpec said = job;
  said.resources.offload_optimizer = plan.offload_optimizer;
  said.resources.offload_parameters = plan.offload_parameters;
  said.resources.offload_activations = plan.offload_activations;
  said.resources.device_updated_units = plan.device_updated_units;
  said.resources.resident_units = plan.resident_units;
  if (!plan.recompute_schedule.empty()) said.resources.recompute = "optimal";
  EXPECT_EQ(ToJson(BestOf(said, machine)), ToJson(plan));
}

TEST(OpenChoices, TakeAFileForAsSlowAsTheDiskIs) {
  JobSpec job = Job();
  job.resources.offload_optimizer = "nvme";
  job.resources.offload_directory = "/disk";
  WorkerProfile machine = Machine(1024 * kMiB);
  const Result<PlanReport> report = PlanJob(job, {{machine}});
  ASSERT_TRUE(report.ok());
  const auto parameters = static_cast<double>(report->parameters);
  // Both moments are read and written, for as long as the next forward pass takes, which overlaps.
  machine.disk_write_bytes_per_second = 25e6;
  const double slower = BestOf(job, machine).prediction.time.optimizer_seconds;
  machine.disk_write_bytes_per_second = 50e6;
  const double slow = BestOf(job, machine).prediction.time.optimizer_seconds;
  EXPECT_NEAR(slower - slow, 16 * parameters / 50e6, 1e-9 * parameters);
  EXPECT_LT(slow, 16 * parameters / 50e6);
  // On a disk that is fast enough the update takes its own time.
  machine.disk_write_bytes_per_second = 1e12;
  const double update = BestOf(job, machine).prediction.time.optimizer_seconds;
  EXPECT_LT(update, 16 * parameters / 1e9);
  job.resources.offload_optimizer = "host";
  job.resources.offload_directory.clear();
  EXPECT_DOUBLE_EQ(BestOf(job, machine).prediction.time.optimizer_seconds, update);
}

TEST(OpenChoices, ComeToAFileWhereTheHostHasNoRoomForTheMoments) {
  JobSpec job = Job();
  job.model.width = 512;
  job.resources.offload_optimizer = "auto";
  job.resources.offload_directory = "/disk";
  const WorkerProfile large = Machine(1024 * kMiB);
  const int64_t parameters = PlanJob(job, {{large}})->parameters;
  // On the device values, gradients that are open, and what comes and goes.
  job.resources.device_memory_bytes = 12 * parameters;
  const Plan host = BestOf(job, large);
  EXPECT_EQ(host.offload_optimizer, "host");
  EXPECT_EQ(host.offload_directory, "");
  const int64_t bytes = TotalBytes(host.prediction.memory_per_rank);
  std::string why;
  const Plan file = BestOf(job, Machine(bytes - 6 * parameters), &why);
  EXPECT_EQ(file.offload_optimizer, "nvme");
  EXPECT_EQ(file.offload_directory, "/disk");
  EXPECT_THAT(why, HasSubstr("optimizer in a file; its file is read and written at a rate that"));
  EXPECT_NEAR(static_cast<double>(bytes - TotalBytes(file.prediction.memory_per_rank)),
              static_cast<double>(8 * parameters - 24 * kMiB), 1e5);
  // Without a folder for it nothing is left.
  job.resources.offload_directory.clear();
  EXPECT_EQ(PlanJob(job, {{Machine(bytes - 6 * parameters)}}).status().code(),
            StatusCode::kExhausted);
}

DeviceSpec Gpu(int64_t index, const std::string& capability) {
  DeviceSpec device;
  device.index = index;
  device.compute_capability = capability;
  device.memory_bytes = device.memory_limit_bytes = 20000 * kMiB;
  return device;
}

TEST(OpenChoices, ComputeWhereTheJobWouldWithout) {
  JobSpec job = Job();
  job.resources.device = "auto";
  LeaveOffloadOpen(job);
  WorkerProfile machine = Machine(4096 * kMiB);
  machine.device = "cuda";
  machine.devices = {Gpu(0, "9.0")};
  const Plan plan = BestOf(job, machine);
  EXPECT_EQ(plan.device, "cuda");
  EXPECT_EQ(plan.offload_optimizer + plan.offload_parameters + plan.offload_activations,
            "nonenonenone");
  job.resources.device_memory_bytes = 12 * kMiB;
  EXPECT_EQ(BestOf(job, machine).device, "cpu");
}

TEST(OpenChoices, OfPrecisionAreTheFastestThatTheDeviceHas) {
  JobSpec job = Job();
  job.train.precision = "auto";
  job.model.width = 512;
  WorkerProfile machine = Machine(4096 * kMiB);
  std::string why;
  const auto fastest = [&](const std::vector<std::string>& precisions) {
    std::string best;
    double least = 0;
    for (const std::string& precision : precisions) {
      JobSpec own = job;
      own.train.precision = precision;
      const double seconds = BestOf(own, machine).prediction.step_seconds;
      if (!best.empty() && seconds >= least) continue;
      best = precision;
      least = seconds;
    }
    return best;
  };
  for (const char* isa : {"avx2", "avx512", "avx512_bf16", "amx"}) {
    machine.isa = isa;
    const Plan plan = BestOf(job, machine, &why);
    EXPECT_EQ(plan.precision, fastest({"fp32", "bf16", "fp16"})) << isa;
    EXPECT_THAT(why, HasSubstr("; in " + plan.precision));
  }
  EXPECT_EQ(BestOf(job, machine).precision, "bf16") << "which AMX has";
  job.resources.device = "cuda";
  job.model.width = 2048;
  machine.device = "cuda";
  machine.devices = {Gpu(0, "8.0")};
  EXPECT_EQ(BestOf(job, machine).precision, fastest({"fp32", "bf16", "fp16"}));
  // One of two GPUs has fp8.
  machine.devices.push_back(Gpu(1, "9.0"));
  const std::string best = fastest({"fp32", "bf16", "fp16", "fp8"});
  const Plan plan = BestOf(job, machine);
  EXPECT_EQ(plan.precision, best);
  JobSpec own = job;
  own.resources.ranks = 1;
  own.train.global_batch = 1;
  const Plan one = BestOf(own, machine);
  EXPECT_EQ(one.precision, "fp8");
  EXPECT_EQ(one.rank_devices, std::vector<int64_t>{1});
}

INSTANTIATE_TEST_SUITE_P(WithOneMeshAndAny, OpenOffload, testing::Values(false, true),
                         [](const auto& param) { return param.param ? "Any" : "One"; });

}  // namespace
}  // namespace weft::planner
