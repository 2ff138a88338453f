#pragma once

#include <deque>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "common/rng.h"
#include "kernels/cuda/device.h"
#include "kernels/stream.h"
#include "kernels/testing/compare.h"
#include "kernels/testing/test_tensor.h"

namespace weft::kernels::testing {

/// One call of an operation on concrete tensors, with the truth it is held against.
struct OpRun {
  /// A result and its float64 reference, computed from inputs' Values() and InitialValues().
  struct Expectation {
    std::string name;
    const TestTensor* tensor;
    std::function<std::vector<double>()> reference;
    int64_t terms;      ///< Length of the f32 sums behind an element.
    DType precision;    ///< Coarsest type that values pass through; usually the tensor's own.
    int roundings = 2;  ///< To that type, the result's own included; at least 2.
  };

  /// Draws this run's inputs; each case has its own fixed seed.
  PhiloxStream rng{{}};
  std::deque<TestTensor> tensors;  ///< Stable addresses.
  std::vector<Expectation> outputs;
  std::function<Status(const Stream&)> run;
  double flops = 0;             ///< Of one call, in matrix products; 0 where there are none.
  double bytes = 0;             ///< Read and written by one call, each tensor once.
  DType compute = DType::kF32;  ///< Which GEMM ceiling `flops` is measured against.

  /// A tensor of random non-zero values (f32, bf16).
  TestTensor& Input(DType dtype, Shape shape, int64_t row_padding = 0, double scale = 1.0);
  /// A tensor of poison for an operation to overwrite, checked against `reference`.
  TestTensor& Output(std::string name, DType dtype, Shape shape, int64_t row_padding, int64_t terms,
                     std::function<std::vector<double>()> reference);
  /// Checks a tensor made with Input() that the operation changes or adds to.
  void Check(std::string name, const TestTensor& tensor, int64_t terms,
             std::function<std::vector<double>()> reference);
};

enum class CaseUse {
  kTest,         ///< Small and odd shapes, for correctness.
  kSpeed,        ///< Real shapes, for the benchmark on a CPU only.
  kDeviceSpeed,  ///< Real shapes that fill a GPU, for the benchmark on one only.
};

/// One row of an operation's case list, which drives tests and benchmarks alike.
struct OpCase {
  std::string name;  ///< "<op>/<shape>/<dtype>", unique
  CaseUse use = CaseUse::kTest;
  /// Makes the tensors and sets `run`. The functions it stores may hold references to tensors but
  /// not to the OpRun itself, which moves.
  std::function<void(OpRun&)> build;
};

/// Makes the inputs of a case.
OpRun BuildCase(const OpCase& op_case);

/// Runs a kTest case on every instruction set up to ProcessIsa(), with 1, 2 and 3 threads; checks
/// against the reference, for writes outside the rows, and that a second run is bitwise equal.
/// Returns the failures as text, empty when there are none.
std::string CheckCase(const OpCase& op_case);

/// Runs a kTest case on a CUDA device, a second time on memory without guards: checks as CheckCase
/// does, and both runs are bitwise equal. Where the operation answers kUnavailable its name goes to
/// `missing` instead.
std::string CheckCaseOn(cuda::StreamState& state, const OpCase& op_case,
                        std::set<std::string>& missing);

/// CheckCase of all kTest cases, the failures joined; for EXPECT_EQ(CheckCases(...), "").
std::string CheckCases(const std::vector<OpCase>& cases);

}  // namespace weft::kernels::testing
