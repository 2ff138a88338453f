// A job in JSON that is planned for two small machines. What is chosen names machines that are
// there.
#include <algorithm>
#include <chrono>
#include <stop_token>
#include <thread>

#include "common/spec/job_spec.h"
#include "common/spec/spec_json.h"
#include "coordinator/planner/planner.h"
#include "tests/fuzz/input.h"

namespace {

constexpr int64_t kMemoryBytes = int64_t{8} << 30;
/// Larger searches only take longer.
constexpr std::chrono::milliseconds kBudget(100);

weft::ClusterProfile Machines() {
  weft::ClusterProfile cluster;
  for (const char* id : {"a", "b"}) {
    weft::WorkerProfile worker;
    worker.worker_id = id;
    worker.isa = "avx2";
    worker.cores = 4;
    worker.memory_bytes = worker.memory_limit_bytes = kMemoryBytes;
    worker.copy_bytes_per_second = 10e9;
    worker.loopback_bytes_per_second = 2e9;
    for (const char* precision : {"bf16", "fp32"}) {
      worker.gemm.push_back({precision, 256, 768, 768, 1, 100e9});
    }
    cluster.workers.push_back(worker);
  }
  return cluster;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  const Result<Json> json = ParseJson(fuzz::Text(data, size));
  if (!json.ok()) return 0;
  const Result<JobSpec> job = FromJson<JobSpec>(*json);
  if (!job.ok() || !ValidateJob(*job).ok()) return 0;
  std::stop_source stop;
  // Ends with the plan.
  const std::jthread watch([&stop](const std::stop_token& done) {
    const auto end = std::chrono::steady_clock::now() + kBudget;
    while (!done.stop_requested() && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    stop.request_stop();
  });
  const Result<PlanReport> report = planner::PlanJob(*job, Machines(), stop.get_token());
  if (!report.ok()) return 0;
  for (const PlanCandidate& candidate : report->candidates) {
    if (!candidate.chosen) continue;
    WEFT_FUZZ_EXPECT(candidate.feasible);
    const auto& workers = candidate.plan.rank_workers;
    WEFT_FUZZ_EXPECT(!workers.empty());
    WEFT_FUZZ_EXPECT(std::all_of(workers.begin(), workers.end(),
                                 [](const std::string& id) { return id == "a" || id == "b"; }));
  }
  return 0;
}
