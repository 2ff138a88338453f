// Times the planner on clusters of GPUs: what `weft plan` takes on this machine's processor, and
// how much memory. Prints a row of Markdown for each job; or writes the last of Cases() and its
// cluster, for `weft plan DIR/job.json --cluster DIR/cluster.json --any-mesh`:
//   planner_speed [--write DIR]
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/env.h"
#include "common/spec/spec_json.h"
#include "coordinator/planner/cluster/on_threads.h"
#include "coordinator/planner/cluster/run_search.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/search.h"

namespace weft::planner {
namespace {

/// A machine as a worker reports it, with eight H100 and rates of the maker.
WorkerProfile Machine(int64_t number, bool with_devices) {
  WorkerProfile worker;
  worker.worker_id = "machine-" + std::to_string(number);
  worker.isa = "avx512_bf16";
  worker.cores = 96;
  worker.memory_bytes = worker.memory_limit_bytes = int64_t{1} << 40;
  worker.loopback_bytes_per_second = 50e9;
  if (!with_devices) return worker;
  worker.device = "cuda";
  for (int64_t index = 0; index < 8; ++index) {
    DeviceSpec device;
    device.index = index;
    device.uuid = worker.worker_id + "-" + std::to_string(index);
    device.name = "NVIDIA H100 80GB HBM3";
    device.compute_capability = "9.0";
    device.memory_bytes = 85'899'345'920;
    device.memory_limit_bytes = device.memory_bytes / 100 * 92;
    device.copy_bytes_per_second = 2.6e12;
    for (int64_t m : {256, 1024, 4096, 8192}) {
      const double thin = static_cast<double>(m) / static_cast<double>(m + 512);
      device.gemm.push_back({"bf16", m, m, m, 1, 700e12 * thin});
    }
    for (int64_t other = 0; other < 8; ++other) {
      if (other != index) device.links.push_back({other, "nvlink", true, 300e9});
    }
    worker.devices.push_back(device);
  }
  return worker;
}

struct Case {
  const char* name;
  int64_t machines;
  int64_t layers, width, heads, kv_heads, mlp_width, sequence_length, global_batch;
  int64_t zero_stage;
  int64_t experts = 0;  ///< 8 of them for each token.
};

/// For processors, with a limit to what stands for their devices, and all of offload and the
/// precision left open.
JobSpec OpenJob() {
  JobSpec job;
  job.name = "speed";
  job.data.train = {"tokens.bin"};
  job.model.layers = 48;
  job.model.width = 1024;
  job.model.heads = 16;
  job.model.vocab_size = 50'257;
  job.model.context = 1024;
  job.train.sequence_length = 512;
  job.train.global_batch = 32;
  job.train.precision = "auto";
  ResourceSpec& resources = job.resources;
  resources.offload_optimizer = resources.offload_parameters = resources.offload_activations =
      "auto";
  resources.device_memory_bytes = 2'000'000'000;
  resources.host_link_bytes_per_second = 4'000'000'000;
  return job;
}

/// Makes a job of very many blocks, for one rank on a processor.
JobSpec DeepJob(const std::string& recompute) {
  JobSpec job;
  job.name = "speed";
  job.data.train = {"tokens.bin"};
  job.model.layers = 1024;
  job.model.width = 64;
  job.model.heads = 2;
  job.train.global_batch = 24;
  job.resources.ranks = 1;
  job.resources.recompute = recompute;
  return job;
}

JobSpec JobOf(const Case& wanted) {
  JobSpec job;
  job.name = "speed";
  job.data.train = {"tokens.bin"};
  job.model.family = "llama";
  job.model.layers = wanted.layers;
  job.model.width = wanted.width;
  job.model.heads = wanted.heads;
  job.model.kv_heads = wanted.kv_heads;
  job.model.mlp_width = wanted.mlp_width;
  job.model.vocab_size = 128'256;
  job.model.context = job.train.sequence_length = wanted.sequence_length;
  job.train.global_batch = wanted.global_batch;
  job.train.precision = "bf16";
  job.resources.device = "cuda";
  job.resources.zero_stage = wanted.zero_stage;
  if (wanted.experts > 0) {
    // On GPUs the closed form plans for them.
    job.resources.device = "cpu";
    job.model.experts = wanted.experts;
    job.model.experts_per_token = 8;
    job.model.expert_capacity = 1.25;
  }
  return job;
}

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {"7B on 64", 8, 32, 4096, 32, 32, 11008, 4096, 1024, 3},
      {"175B on 512", 64, 96, 12288, 96, 96, 32768, 2048, 1536, 3},
      {"7B on 64, any mesh", 8, 32, 4096, 32, 32, 11008, 4096, 1024, 0},
      {"175B on 512, any mesh", 64, 96, 12288, 96, 96, 32768, 2048, 1536, 0},
      {"405B on 16,384, any mesh", 2048, 126, 16384, 128, 8, 53248, 4096, 16384, 0},
      {"405B on 16,384", 2048, 126, 16384, 128, 8, 53248, 4096, 16384, 3},
      {"1T of 128 experts on the processors of 512 machines, any mesh", 512, 64, 8192, 64, 8, 4992,
       4096, 8192, 0, 128},
  };
  return cases;
}

/// Median of several times.
template <class Work>
double SecondsOf(const Work& work) {
  std::vector<double> seconds(5);
  for (double& each : seconds) {
    const auto start = std::chrono::steady_clock::now();
    static_cast<void>(work());
    each = SecondsSince(start);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

ClusterProfile ClusterOf(const Case& wanted) {
  ClusterProfile cluster;
  for (int64_t i = 0; i < wanted.machines; ++i) {
    cluster.workers.push_back(Machine(i, wanted.experts == 0));
  }
  return cluster;
}

int Report(const Status& status) {
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

/// `together`: seconds on all threads; 0 where there is but one.
std::string Row(const std::string& name, int64_t plans, int64_t looked_at, double alone,
                double together) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  char on_threads[32] = "";
  if (together > 0) std::snprintf(on_threads, sizeof(on_threads), "%.3f", together);
  char row[256];
  std::snprintf(row, sizeof(row), "| %s | %lld | %lld | %.3f | %s | %.0f | %ld MiB |\n",
                name.c_str(), static_cast<long long>(plans), static_cast<long long>(looked_at),
                alone, on_threads, static_cast<double>(plans) / (together > 0 ? together : alone),
                usage.ru_maxrss >> 10);
  return row;
}

int64_t LookedAt(const SearchResults& found) {
  return found.considered - found.too_slow - found.without_room;
}

/// The row of a job, or an empty one where it has no plan.
std::string RowOf(const Case& wanted, int threads) {
  const ClusterProfile cluster = ClusterOf(wanted);
  const JobSpec job = JobOf(wanted);
  const bool any_mesh = wanted.zero_stage == 0;
  const auto plan = [&](int using_threads) {
    return any_mesh ? PlanAnyMesh(job, cluster, using_threads) : PlanJob(job, cluster);
  };
  const Result<PlanReport> report = plan(threads);
  if (!report.ok()) {
    std::fprintf(stderr, "%s: %s\n", wanted.name, report.status().ToString().c_str());
    return "";
  }
  const SearchResults found = Search(*JobsOf(job, cluster, any_mesh), cluster, threads);
  const double alone = SecondsOf([&] { return plan(1); });
  const double together = any_mesh ? SecondsOf([&] { return plan(threads); }) : alone;
  return Row(wanted.name, found.considered, LookedAt(found), alone, any_mesh ? together : 0);
}

/// The row of the job that leaves all of offload open.
std::string RowOfOpen(int threads) {
  ClusterProfile cluster;
  for (int64_t i = 0; i < 2; ++i) {
    cluster.workers.push_back(Machine(i, false));
    cluster.workers.back().cores = 32;
  }
  const JobSpec job = OpenJob();
  const auto search = [&](int using_threads) {
    return Search(*JobsOf(job, cluster, false), cluster, using_threads);
  };
  const SearchResults found = search(threads);
  if (found.fit == 0) {
    std::fprintf(stderr, "the job that leaves offload open has no plan\n");
    return "";
  }
  const double alone = SecondsOf([&] { return search(1); });
  const double together = SecondsOf([&] { return search(threads); });
  return Row("GPT-2 of 48 layers on the processors of 2 machines, offload open", found.considered,
             LookedAt(found), alone, together);
}

/// The row of the model of very many blocks. Memory is between that of keeping all and of computing
/// each block again, so the schedule of recomputation is looked for.
std::string RowOfDeep(int threads) {
  ClusterProfile cluster;
  cluster.workers.push_back(Machine(0, false));
  cluster.workers.back().cores = 2;
  const Result<PlanReport> all = PlanJob(DeepJob("none"), cluster);
  if (Report(all.status()) != 0) return "";
  const Result<PlanReport> blocks = PlanJob(DeepJob("block"), cluster);
  if (Report(blocks.status()) != 0) return "";
  const auto bytes_of = [](const PlanReport& report) {
    return TotalBytes(report.candidates.front().plan.prediction.memory_per_rank);
  };
  JobSpec job = DeepJob("optimal");
  job.resources.micro_batch = blocks->candidates.front().plan.micro_batch;
  job.resources.memory_per_rank_bytes = (bytes_of(*all) + bytes_of(*blocks)) / 2;
  const auto plan = [&] { return PlanJob(job, cluster); };
  if (Report(plan().status()) != 0) return "";
  const SearchResults found = Search(*JobsOf(job, cluster, false), cluster, threads);
  return Row("GPT-2 of 1024 layers on two cores, recompute optimal", found.considered,
             LookedAt(found), SecondsOf(plan), 0);
}

/// The row of the mixture of experts on GPUs, by the closed form of the cluster model.
std::string RowOfRuns(const Case& wanted, int64_t devices, int threads) {
  const DecoderShape model{.layers = wanted.layers,
                           .width = wanted.width,
                           .heads = wanted.heads,
                           .key_heads = wanted.kv_heads,
                           .mlp_width = wanted.mlp_width,
                           .gated = true,
                           .vocabulary = 128'256,
                           .sequence_length = wanted.sequence_length,
                           .experts = wanted.experts,
                           .experts_per_token = 8,
                           .untied_classifier = true};
  const Result<AcceleratorSpec> device = FindAccelerator("H100-SXM");
  const Result<SoftwareStack> stack = FindStack("megatron-2024");
  const auto search = [&](int using_threads) {
    return FastestRuns(*device, *stack, model, "bf16", devices, wanted.global_batch,
                       0.92 * device->memory_bytes, using_threads);
  };
  const Result<RunSearch> found = search(threads);
  if (Report(found.status()) != 0) return "";
  const double alone = SecondsOf([&] { return search(1); });
  const double together = SecondsOf([&] { return search(threads); });
  const std::string name =
      "1T of 128 experts on " + std::to_string(devices) + " H100, by the closed form";
  return Row(name, found->considered, found->fit, alone, together);
}

Status WriteCase(const Case& wanted, const std::string& folder) {
  const auto write = [&](const char* name, const Json& json) {
    return WriteFileAtomic(Env::Posix(), folder + "/" + name, json.dump(1) + "\n");
  };
  WEFT_RETURN_IF_ERROR(write("job.json", ToJson(JobOf(wanted))));
  return write("cluster.json", ToJson(ClusterOf(wanted)));
}

int Run(int argc, char** argv) {
  const std::string_view option = argc == 3 ? argv[1] : "";
  if (option == "--write") return Report(WriteCase(Cases().back(), argv[2]));
  if (argc != 1) {
    std::fprintf(stderr, "usage: planner_speed [--write DIR]\n");
    return 2;
  }
  const int threads = ThreadsOfMachine();
  std::string table = "| job | plans | looked at | seconds, one thread | " +
                      std::to_string(threads) +
                      " threads | plans a second | peak memory |\n|---|---|---|---|---|---|---|\n";
  for (const Case& wanted : Cases()) {
    const std::string row = RowOf(wanted, threads);
    if (row.empty()) return 1;
    table += row;
  }
  const std::string open = RowOfOpen(threads);
  if (open.empty()) return 1;
  table += open;
  const std::string deep = RowOfDeep(threads);
  if (deep.empty()) return 1;
  table += deep;
  for (const int64_t devices : {1024, 4096}) {
    const std::string row = RowOfRuns(Cases().back(), devices, threads);
    if (row.empty()) return 1;
    table += row;
  }
  std::fputs(table.c_str(), stdout);
  return 0;
}

}  // namespace
}  // namespace weft::planner

int main(int argc, char** argv) {
  return weft::planner::Run(argc, argv);
}
