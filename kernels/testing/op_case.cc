#include "kernels/testing/op_case.h"

#include <utility>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/testing/test_device.h"

namespace weft::kernels::testing {
namespace {

// Puts the thread count back at the end.
class ScopedThreads {
 public:
  explicit ScopedThreads(int count) : previous_(cpu::Threads()) { cpu::SetThreads(count); }
  ~ScopedThreads() { cpu::SetThreads(previous_); }
  ScopedThreads(const ScopedThreads&) = delete;
  ScopedThreads& operator=(const ScopedThreads&) = delete;

 private:
  int previous_;
};

std::vector<Bytes> Snapshot(const OpRun& run) {
  std::vector<Bytes> bytes;
  for (const OpRun::Expectation& output : run.outputs) bytes.push_back(output.tensor->bytes());
  return bytes;
}

Status RunOnce(OpRun& run, const Stream& stream) {
  for (TestTensor& tensor : run.tensors) tensor.Reset();
  WEFT_RETURN_IF_ERROR(run.run(stream));
  if (stream.cuda != nullptr) WEFT_RETURN_IF_ERROR(stream.cuda->Synchronize());
  for (TestTensor& tensor : run.tensors) tensor.Fetch();
  return OkStatus();
}

// What is wrong with the results of a run.
std::string CheckResults(const OpRun& run, const std::vector<std::vector<double>>& wants) {
  for (size_t i = 0; i < run.outputs.size(); ++i) {
    const OpRun::Expectation& output = run.outputs[i];
    std::string mismatch = Mismatch(output.tensor->Values(), wants[i],
                                    ToleranceFor(output.precision, output.terms, output.roundings));
    if (!mismatch.empty()) return output.name + ": " + mismatch;
  }
  for (const TestTensor& tensor : run.tensors) {
    if (!tensor.GuardsIntact()) return "wrote outside the rows of a tensor";
  }
  return "";
}

std::vector<std::vector<double>> References(const OpRun& run) {
  std::vector<std::vector<double>> wants;
  for (const OpRun::Expectation& output : run.outputs) wants.push_back(output.reference());
  return wants;
}

std::string CheckOnce(OpRun& run, const std::vector<std::vector<double>>& wants) {
  if (Status status = RunOnce(run, Stream{}); !status.ok()) return status.ToString();
  if (std::string wrong = CheckResults(run, wants); !wrong.empty()) return wrong;
  auto first = Snapshot(run);
  if (Status status = RunOnce(run, Stream{}); !status.ok()) return status.ToString();
  if (Snapshot(run) != first) return "a second run differs from the first";
  return "";
}

}  // namespace

TestTensor& OpRun::Input(DType dtype, Shape shape, int64_t row_padding, double scale) {
  return tensors.emplace_back(dtype, shape, row_padding).Random(rng, scale);
}

TestTensor& OpRun::Output(std::string name, DType dtype, Shape shape, int64_t row_padding,
                          int64_t terms, std::function<std::vector<double>()> reference) {
  TestTensor& tensor = tensors.emplace_back(dtype, shape, row_padding);
  Check(std::move(name), tensor, terms, std::move(reference));
  return tensor;
}

void OpRun::Check(std::string name, const TestTensor& tensor, int64_t terms,
                  std::function<std::vector<double>()> reference) {
  outputs.push_back(
      {std::move(name), &tensor, std::move(reference), terms, tensor.view().dtype, 2});
}

OpRun BuildCase(const OpCase& op_case) {
  OpRun run;
  run.rng = PhiloxStream({.seed = 1, .step = 0, .site = SiteHash(op_case.name.c_str())});
  op_case.build(run);
  return run;
}

std::string CheckCase(const OpCase& op_case) {
  OpRun run = BuildCase(op_case);
  const std::vector<std::vector<double>> wants = References(run);
  std::string failures;
  for (int level = 0; level <= static_cast<int>(cpu::ProcessIsa()); ++level) {
    auto isa = static_cast<cpu::Isa>(level);
    cpu::ScopedIsa use_isa(isa);
    for (int threads = 1; threads <= 3; ++threads) {
      ScopedThreads use_threads(threads);
      std::string failure = CheckOnce(run, wants);
      if (failure.empty()) continue;
      failures += op_case.name + " (" + std::string(cpu::IsaName(isa)) + ", " +
                  std::to_string(threads) + " threads): " + failure + "\n";
    }
  }
  return failures;
}

std::string CheckCaseOn(cuda::StreamState& state, const OpCase& op_case,
                        std::set<std::string>& missing) {
  const Stream stream = state.stream();
  // cuDNN may give other bits.
  const bool repeats = state.attention() == cuda::AttentionChoice::kOwn;
  std::vector<Bytes> first;
  for (bool exact : {false, true}) {
    const ScopedTestDevice device(stream.device, exact);
    OpRun run = BuildCase(op_case);
    const Status status = RunOnce(run, stream);
    if (status.code() == StatusCode::kUnavailable) {
      missing.insert(status.message().substr(0, status.message().find(':')));
      return "";
    }
    std::string wrong = status.ok() ? "" : status.ToString();
    if (wrong.empty() && (!exact || !repeats)) wrong = CheckResults(run, References(run));
    if (wrong.empty() && exact && repeats && Snapshot(run) != first) {
      wrong = "a second run differs";
    }
    if (!wrong.empty()) return op_case.name + ": " + wrong + "\n";
    first = Snapshot(run);
  }
  return "";
}

std::string CheckCases(const std::vector<OpCase>& cases) {
  std::string failures;
  for (const OpCase& op_case : cases) {
    if (op_case.use == CaseUse::kTest) failures += CheckCase(op_case);
  }
  return failures;
}

}  // namespace weft::kernels::testing
