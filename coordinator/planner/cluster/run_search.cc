#include "coordinator/planner/cluster/run_search.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/check.h"
#include "coordinator/planner/cluster/on_threads.h"
#include "coordinator/planner/cluster/run_memory.h"

namespace weft::planner {
namespace {

std::vector<int64_t> Divisors(int64_t value) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= value / d; ++d) {
    if (value % d != 0) continue;
    divisors.push_back(d);
    if (d != value / d) divisors.push_back(value / d);
  }
  std::sort(divisors.begin(), divisors.end());
  return divisors;
}

/// Where ranks are placed; the rest is cheap to vary.
std::vector<ClusterRun> Meshes(const AcceleratorSpec& device, const ClusterRun& plain,
                               int64_t devices) {
  std::vector<ClusterRun> meshes;
  const DecoderShape& model = plain.model;
  for (const int64_t tensor : Divisors(std::gcd(model.heads, model.mlp_width))) {
    if (tensor > device.per_node || devices % tensor != 0) continue;
    for (const int64_t pipeline : Divisors(model.layers)) {
      if (devices / tensor % pipeline != 0) continue;
      const int64_t data = devices / (tensor * pipeline);
      if (plain.global_batch % data != 0) continue;
      for (const int64_t expert : Divisors(std::gcd(model.experts, data))) {
        ClusterRun run = plain;
        run.tensor = tensor;
        run.pipeline = pipeline;
        run.data = data;
        run.expert = expert;
        meshes.push_back(run);
      }
    }
  }
  return meshes;
}

class MeshRuns {
 public:
  MeshRuns(const AcceleratorSpec& device, const SoftwareStack& stack, double memory_bytes)
      : device_(device), stack_(stack), memory_bytes_(memory_bytes) {}

  RunSearch Search(ClusterRun run) {
    for (const int64_t stages : Divisors(run.model.layers / run.pipeline)) {
      if (run.pipeline == 1 && stages > 1) break;
      run.stages_per_rank = stages;
      for (run.zero_stage = 0; run.zero_stage <= (run.pipeline > 1 ? 1 : 3); ++run.zero_stage) {
        for (const Recomputation recomputation : {Recomputation::kNone, Recomputation::kBlock}) {
          run.recomputation = recomputation;
          for (const int64_t micro_batch : Divisors(run.global_batch / run.data)) {
            run.micro_batch = micro_batch;
            Try(run);
          }
        }
      }
    }
    return std::move(found_);
  }

 private:
  void Try(const ClusterRun& run) {
    ++found_.considered;
    const double bytes = MemoryOf(stack_, run).Total();
    if (bytes > memory_bytes_) return;
    ++found_.fit;
    const Result<StepLedger> step = PredictStep(device_, stack_, run);
    WEFT_CHECK(step.ok(), step.status().message());
    std::vector<PricedRun>& fastest = found_.fastest;
    const double seconds = step->Seconds();
    const auto after =
        std::upper_bound(fastest.begin(), fastest.end(), seconds,
                         [](double value, const PricedRun& each) { return value < each.seconds; });
    if (after == fastest.end() && fastest.size() == kRunsKept) return;
    fastest.insert(after, {run, seconds, bytes});
    if (fastest.size() > kRunsKept) fastest.pop_back();
  }

  const AcceleratorSpec& device_;
  const SoftwareStack& stack_;
  const double memory_bytes_;
  RunSearch found_;
};

}  // namespace

Result<RunSearch> FastestRuns(const AcceleratorSpec& device, const SoftwareStack& stack,
                              const DecoderShape& model, const std::string& precision,
                              int64_t devices, int64_t global_batch, double memory_bytes,
                              int threads) {
  ClusterRun plain;
  plain.model = model;
  plain.precision = precision;
  plain.global_batch = global_batch;
  WEFT_RETURN_IF_ERROR(PredictStep(device, stack, plain).status());
  const std::vector<ClusterRun> meshes = Meshes(device, plain, devices);
  std::vector<RunSearch> of_mesh(meshes.size());
  OnThreads(threads, meshes.size(), [&](size_t i) {
    of_mesh[i] = MeshRuns(device, stack, memory_bytes).Search(meshes[i]);
    return true;
  });
  RunSearch all;
  for (RunSearch& each : of_mesh) {
    all.considered += each.considered;
    all.fit += each.fit;
    all.fastest.insert(all.fastest.end(), each.fastest.begin(), each.fastest.end());
  }
  std::stable_sort(all.fastest.begin(), all.fastest.end(),
                   [](const PricedRun& a, const PricedRun& b) { return a.seconds < b.seconds; });
  if (all.fastest.size() > kRunsKept) all.fastest.resize(kRunsKept);
  if (all.fit == 0) {
    return ExhaustedError("none of " + std::to_string(all.considered) + " ways to train on " +
                          std::to_string(devices) + " " + device.name +
                          " fits; hint: more devices, or a batch that they divide");
  }
  return all;
}

}  // namespace weft::planner
