// Speed of the kernels on real shapes: ms, GFLOP/s or GB/s, and the share of what the machine
// reaches at best on a plain matrix product or on plain copying, measured at the start.

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "kernels/cpu/parallel.h"
#include "kernels/linear/linear.h"
#include "kernels/testing/all_cases.h"
#include "kernels/testing/bench_target.h"

namespace weft::kernels::testing {
namespace {

struct Options {
  std::string filter = ".*";
  std::string json_path;
  std::string device = "cpu";
  int threads = 0;
  double seconds = 0.3;
  bool list = false;
  bool count = false;
};

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// What the machine reaches at best.
struct Ceilings {
  double copy_bytes_per_s = 0;
  double f32_flops_per_s = 0;  // 0: has no matrix product
  double bf16_flops_per_s = 0;

  double Flops(DType compute) const {
    return compute == DType::kBF16 ? bf16_flops_per_s : f32_flops_per_s;
  }
};

// FLOP/s of one large product; 0 where there is none.
Result<double> ProductCeiling(BenchTarget& target, DType dtype, double budget) {
  const int64_t size = target.ceiling_product_size();
  OpRun run;
  TestTensor& x = run.Input(dtype, {size, size});
  TestTensor& w = run.Input(DType::kF32, {size, size});
  TestTensor& y = run.tensors.emplace_back(dtype, Shape{size, size});
  auto weight = NewPackedWeight(target.device(), size, size, dtype);
  if (weight.status().code() == StatusCode::kUnavailable) return 0.0;
  WEFT_RETURN_IF_ERROR(weight.status());
  bool packed = false;
  run.run = [&](const Stream& stream) -> Status {
    if (!std::exchange(packed, true)) WEFT_RETURN_IF_ERROR((*weight)->Pack(stream, w.view()));
    return LinearForward(stream, {.x = x.view(), .weight = weight->get(), .y = y.view()});
  };
  auto seconds = target.Seconds(run, budget);
  if (seconds.status().code() == StatusCode::kUnavailable) return 0.0;
  WEFT_RETURN_IF_ERROR(seconds.status());
  const auto n = static_cast<double>(size);
  return 2.0 * n * n * n / Median(*seconds);
}

Result<Ceilings> MeasureCeilings(BenchTarget& target, double budget) {
  Ceilings ceilings;
  WEFT_ASSIGN_OR_RETURN(const BenchTarget::Copies copies, target.Copy(budget));
  ceilings.copy_bytes_per_s = copies.bytes / Median(copies.seconds);
  WEFT_ASSIGN_OR_RETURN(ceilings.f32_flops_per_s, ProductCeiling(target, DType::kF32, budget));
  WEFT_ASSIGN_OR_RETURN(ceilings.bf16_flops_per_s, ProductCeiling(target, DType::kBF16, budget));
  return ceilings;
}

// Times a case; prints its line.
Result<Json> Measure(BenchTarget& target, const OpCase& op_case, const Ceilings& ceilings,
                     double budget) {
  OpRun run = BuildCase(op_case);
  WEFT_ASSIGN_OR_RETURN(const std::vector<double> all, target.Seconds(run, budget));
  const double seconds = Median(all), product_rate = ceilings.Flops(run.compute);
  // The least time at the ceilings: of products, or of moving the tensors.
  const double moving = run.bytes / ceilings.copy_bytes_per_s;
  const bool by_flops = run.flops > 0 && (product_rate == 0 || run.flops / product_rate > moving);
  const double floor = by_flops ? run.flops / std::max(product_rate, 1.0) : moving;
  const double rate = (by_flops ? run.flops : run.bytes) / seconds;
  const char* unit = by_flops ? "GFLOP/s" : "GB/s";
  const bool known = !by_flops || product_rate > 0;
  std::printf("%-52s %9.3f ms %9.1f %-7s %4.0f %%\n", op_case.name.c_str(), seconds * 1e3,
              rate / 1e9, unit, known ? floor / seconds * 100 : 0);
  std::fflush(stdout);
  return Json{{"name", op_case.name},
              {"ms", seconds * 1e3},
              {"best_ms", *std::min_element(all.begin(), all.end()) * 1e3},
              {"runs", all.size()},
              {"flops", run.flops},
              {"bytes", run.bytes},
              {"rate", rate / 1e9},
              {"unit", unit},
              {"share_of_ceiling", known ? Json(floor / seconds) : Json()}};
}

Status Write(const Json& report, const std::string& path) {
  if (path.empty()) return OkStatus();
  std::ofstream out(path);
  out << report.dump(1) << "\n";
  return out.flush() ? OkStatus() : InternalError("cannot write " + path);
}

// What cannot be timed goes into the report and does not stop the others. The file is complete
// after each case, for whoever runs out of time.
Status MeasureAll(BenchTarget& target, const std::vector<OpCase>& cases, const Options& options,
                  const Ceilings& ceilings, Json& report, int& failures) {
  Json& rows = report["cases"] = Json::array();
  for (const OpCase& op_case : cases) {
    auto row = Measure(target, op_case, ceilings, options.seconds);
    if (row.ok()) {
      rows.push_back(*std::move(row));
    } else {
      const bool missing = row.status().code() == StatusCode::kUnavailable;
      if (!missing) ++failures;
      std::printf("%-52s %s\n", op_case.name.c_str(), row.status().ToString().c_str());
      rows.push_back(
          {{"name", op_case.name}, {missing ? "missing" : "error", row.status().message()}});
    }
    WEFT_RETURN_IF_ERROR(Write(report, options.json_path));
  }
  return OkStatus();
}

Json Count(const std::vector<OpCase>& cases) {
  Json rows = Json::array();
  for (const OpCase& op_case : cases) {
    const OpRun run = BuildCase(op_case);
    rows.push_back({{"name", op_case.name}, {"flops", run.flops}, {"bytes", run.bytes}});
  }
  return rows;
}

Result<std::unique_ptr<BenchTarget>> NewTarget(const std::string& device) {
  if (device == "cpu") return NewCpuTarget();
  return NewCudaTarget(0);
}

Status MeasureOn(BenchTarget& target, const std::vector<OpCase>& cases, const Options& options,
                 int& failures) {
  Json report = target.Describe();
  WEFT_ASSIGN_OR_RETURN(const Ceilings ceilings, MeasureCeilings(target, options.seconds));
  report["copy_gbytes_per_s"] = ceilings.copy_bytes_per_s / 1e9;
  report["gemm_f32_gflops"] = ceilings.f32_flops_per_s / 1e9;
  report["gemm_bf16_gflops"] = ceilings.bf16_flops_per_s / 1e9;
  std::printf("%s\n", report.dump().c_str());
  return MeasureAll(target, cases, options, ceilings, report, failures);
}

Status Run(const Options& options, int& failures) {
  const std::regex filter(options.filter);
  if (options.threads > 0) cpu::SetThreads(options.threads);
  const CaseUse use = options.device == "cpu" ? CaseUse::kSpeed : CaseUse::kDeviceSpeed;
  std::vector<OpCase> cases;
  for (OpCase& op_case : AllCases()) {
    if (op_case.use != use || !std::regex_search(op_case.name, filter)) continue;
    cases.push_back(std::move(op_case));
  }
  if (options.list) {
    for (const OpCase& op_case : cases) std::printf("%s\n", op_case.name.c_str());
    return OkStatus();
  }
  if (options.count) return Write({{"cases", Count(cases)}}, options.json_path);
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<BenchTarget> target, NewTarget(options.device));
  return MeasureOn(*target, cases, options, failures);
}

int Main(const Options& options) {
  int failures = 0;
  const Status status = Run(options, failures);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() && failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace weft::kernels::testing

int main(int argc, char** argv) {
  weft::kernels::testing::Options options;
  CLI::App app("Speed of the kernels on real shapes");
  app.add_option("--filter", options.filter, "Regular expression; only cases whose name matches");
  app.add_option("--device", options.device, "cpu, or cuda for the first CUDA device")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--json", options.json_path, "Also write the results to this file");
  app.add_option("--threads", options.threads, "Threads (default: OMP_NUM_THREADS or all cores)");
  app.add_option("--seconds", options.seconds, "Time spent on each case");
  app.add_flag("--list", options.list, "Print the names of the cases");
  app.add_flag("--count", options.count,
               "Time nothing: only write what each case moves and computes");
  CLI11_PARSE(app, argc, argv);
  return weft::kernels::testing::Main(options);
}
