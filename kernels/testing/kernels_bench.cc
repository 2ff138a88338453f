// Speed of the kernels on real shapes: ms, GFLOP/s or GB/s, and the share of what the machine
// reaches at best on plain GEMM or on plain copying, measured at the start.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/json.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/linear/linear.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string filter = ".*";
  std::string json_path;
  int threads = 0;
  double seconds = 0.3;
  bool list = false;
};

// Larger than the last-level cache share of most machines: read and written between timings.
class CacheScrubber {
 public:
  CacheScrubber() : memory_(size_t{16} << 20, 1.0f) {}
  void Scrub() {
    Status status = Scale(
        {}, {.x = TensorView(memory_.data(), DType::kF32, {static_cast<int64_t>(memory_.size())}),
             .factor = 1.0f});
    WEFT_CHECK(status.ok(), status.message());
  }

 private:
  std::vector<float> memory_;
};

double SecondsOf(const std::function<Status(const Stream&)>& run) {
  auto start = Clock::now();
  Status status = run(Stream{});
  double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  WEFT_CHECK(status.ok(), status.message());
  return seconds;
}

// Median of repetitions over about `budget` seconds, after one warm-up.
double MedianSeconds(const OpRun& run, double budget, CacheScrubber& scrubber) {
  SecondsOf(run.run);
  std::vector<double> times;
  double spent = 0;
  while (times.size() < 3 || (spent < budget && times.size() < 1000)) {
    scrubber.Scrub();
    times.push_back(SecondsOf(run.run));
    spent += times.back();
  }
  std::nth_element(times.begin(), times.begin() + static_cast<int64_t>(times.size() / 2),
                   times.end());
  return times[times.size() / 2];
}

// Bytes per second of copying f32, reads plus writes.
double CopyCeiling(double budget, CacheScrubber& scrubber) {
  OpRun run;
  int64_t count = int64_t{1} << 25;
  TestTensor& x = run.Input(DType::kF32, {count});
  TestTensor& y = run.tensors.emplace_back(DType::kF32, Shape{count});
  run.run = [&](const Stream& stream) { return Cast(stream, {.x = x.view(), .y = y.view()}); };
  return 2.0 * static_cast<double>(x.view().Bytes()) / MedianSeconds(run, budget, scrubber);
}

// FLOP/s of one large product, 2048 x 2048 x 2048.
double GemmCeiling(DType dtype, double budget, CacheScrubber& scrubber) {
  constexpr int64_t kSize = 2048;
  OpRun run;
  TestTensor& x = run.Input(dtype, {kSize, kSize});
  TestTensor& w = run.Input(DType::kF32, {kSize, kSize});
  TestTensor& y = run.tensors.emplace_back(dtype, Shape{kSize, kSize});
  auto weight = NewPackedWeight({}, kSize, kSize, dtype);
  WEFT_CHECK(weight.ok(), weight.status().message());
  Status packed = (*weight)->Pack({}, w.view());
  WEFT_CHECK(packed.ok(), packed.message());
  run.run = [&](const Stream& stream) {
    return LinearForward(stream, {.x = x.view(), .weight = weight->get(), .y = y.view()});
  };
  return 2.0 * kSize * kSize * kSize / MedianSeconds(run, budget, scrubber);
}

int Main(const Options& options) {
  std::regex filter(options.filter);
  if (options.threads > 0) cpu::SetThreads(options.threads);
  std::vector<OpCase> cases;
  for (OpCase& op_case : AllCases()) {
    if (op_case.use != CaseUse::kSpeed || !std::regex_search(op_case.name, filter)) continue;
    cases.push_back(std::move(op_case));
  }
  if (options.list) {
    for (const OpCase& op_case : cases) std::printf("%s\n", op_case.name.c_str());
    return 0;
  }
  CacheScrubber scrubber;
  double copy = CopyCeiling(options.seconds, scrubber);
  double gemm_f32 = GemmCeiling(DType::kF32, options.seconds, scrubber);
  double gemm_bf16 = GemmCeiling(DType::kBF16, options.seconds, scrubber);
  Json report = {{"isa", cpu::IsaName(cpu::ActiveIsa())}, {"threads", cpu::Threads()},
                 {"copy_gbytes_per_s", copy / 1e9},       {"gemm_f32_gflops", gemm_f32 / 1e9},
                 {"gemm_bf16_gflops", gemm_bf16 / 1e9},   {"cases", Json::array()}};
  std::printf("%s, %d threads; copy %.1f GB/s, GEMM f32 %.0f, bf16 %.0f GFLOP/s\n",
              report["isa"].get<std::string>().c_str(), cpu::Threads(), copy / 1e9, gemm_f32 / 1e9,
              gemm_bf16 / 1e9);
  for (const OpCase& op_case : cases) {
    OpRun run = BuildCase(op_case);
    double seconds = MedianSeconds(run, options.seconds, scrubber);
    double rate = (run.flops > 0 ? run.flops : run.bytes) / seconds;
    double gemm = run.compute == DType::kBF16 ? gemm_bf16 : gemm_f32;
    double share = rate / (run.flops > 0 ? gemm : copy);
    const char* unit = run.flops > 0 ? "GFLOP/s" : "GB/s";
    std::printf("%-44s %9.3f ms %9.1f %-7s %4.0f %%\n", op_case.name.c_str(), seconds * 1e3,
                rate / 1e9, unit, share * 100);
    std::fflush(stdout);
    report["cases"].push_back({{"name", op_case.name},
                               {"ms", seconds * 1e3},
                               {"rate", rate / 1e9},
                               {"unit", unit},
                               {"share_of_ceiling", share}});
  }
  if (!options.json_path.empty()) {
    std::ofstream out(options.json_path);
    out << report.dump(1) << "\n";
    if (!out) {
      std::fprintf(stderr, "cannot write %s\n", options.json_path.c_str());
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace weft::kernels::testing

int main(int argc, char** argv) {
  weft::kernels::testing::Options options;
  CLI::App app("Speed of the kernels on real shapes");
  app.add_option("--filter", options.filter, "Regular expression; only cases whose name matches");
  app.add_option("--json", options.json_path, "Also write the results to this file");
  app.add_option("--threads", options.threads, "Threads (default: OMP_NUM_THREADS or all cores)");
  app.add_option("--seconds", options.seconds, "Time spent on each case");
  app.add_flag("--list", options.list, "Print the names of the cases");
  CLI11_PARSE(app, argc, argv);
  return weft::kernels::testing::Main(options);
}
