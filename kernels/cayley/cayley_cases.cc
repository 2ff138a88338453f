#include "kernels/cayley/cayley.h"
#include "kernels/cayley/cayley_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

struct Sizes {
  int64_t blocks, size;

  std::string ToString() const { return std::to_string(blocks) + "x" + std::to_string(size); }
  Shape above() const { return {blocks, NumbersAboveDiagonal(size)}; }
  Shape square() const { return {blocks * size, size}; }
};

/// Number of terms in the sums behind a number: four products of matrices.
int64_t Terms(const Sizes& size) {
  return 16 * size.size + 16;
}

double DeviationOf(const Sizes& size) {
  return 0.5 / static_cast<double>(size.size);
}

OpCase ForwardCase(const Sizes& size, DType dtype, CaseUse use) {
  return {"cayley_forward/" + size.ToString() + "/" + std::string(DTypeName(dtype)), use,
          [=](OpRun& run) {
            TestTensor& q = run.Input(dtype, size.above(), 0, DeviationOf(size));
            TestTensor& r = run.Output("r", DType::kF32, size.square(), 0, Terms(size), [=, &q] {
              const std::vector<double> above = q.InitialValues();
              std::vector<double> all;
              for (int64_t block = 0; block < size.blocks; ++block) {
                const RefSquare own = CayleyRef(above.data() + block * size.above()[1], size.size);
                all.insert(all.end(), own.begin(), own.end());
              }
              return all;
            });
            run.run = [&q, &r](const Stream& stream) {
              return CayleyForward(stream, {q.view(), r.view()});
            };
            run.bytes = static_cast<double>(q.view().Bytes() + r.view().Bytes());
          }};
}

OpCase BackwardCase(const Sizes& size, DType dtype, bool accumulate, CaseUse use) {
  return {"cayley_backward/" + size.ToString() + "/" + std::string(DTypeName(dtype)) +
              (accumulate ? "/accumulate" : ""),
          use, [=](OpRun& run) {
            TestTensor& q = run.Input(dtype, size.above(), 0, DeviationOf(size));
            TestTensor& dr = run.Input(DType::kF32, size.square());
            const auto reference = [=, &q, &dr](std::vector<double> before) {
              const std::vector<double> above = q.InitialValues(), gradient = dr.InitialValues();
              const int64_t numbers = size.above()[1], square = size.size * size.size;
              for (int64_t block = 0; block < size.blocks; ++block) {
                const std::vector<double> own = CayleyGradientRef(
                    above.data() + block * numbers, gradient.data() + block * square, size.size);
                for (int64_t i = 0; i < numbers; ++i) before[block * numbers + i] += own[i];
              }
              return before;
            };
            const auto zeros = std::vector<double>(static_cast<size_t>(size.above().Elements()));
            TestTensor& dq = accumulate ? run.Input(DType::kF32, size.above())
                                        : run.Output("dq", DType::kF32, size.above(), 0,
                                                     Terms(size), [=] { return reference(zeros); });
            if (accumulate) {
              run.Check("dq", dq, Terms(size), [=, &dq] { return reference(dq.InitialValues()); });
            }
            run.run = [=, &q, &dr, &dq](const Stream& stream) {
              return CayleyBackward(stream, {q.view(), dr.view(), dq.view(), accumulate});
            };
            run.bytes =
                static_cast<double>(q.view().Bytes() + dr.view().Bytes() + dq.view().Bytes());
          }};
}

}  // namespace

std::vector<OpCase> CayleyCases() {
  const Sizes speed{24, 32}, device_speed{128, 32};
  std::vector<OpCase> cases = {
      ForwardCase(speed, DType::kF32, CaseUse::kSpeed),
      BackwardCase(speed, DType::kF32, true, CaseUse::kSpeed),
      ForwardCase(device_speed, DType::kF32, CaseUse::kDeviceSpeed),
      BackwardCase(device_speed, DType::kF32, true, CaseUse::kDeviceSpeed)};
  for (const DType dtype : kMatrixTypes) {
    // No block, the smallest ones, an odd size, and more numbers than threads.
    for (const Sizes& size : {Sizes{0, 4}, Sizes{3, 2}, Sizes{5, 7}, Sizes{2, 24}}) {
      cases.push_back(ForwardCase(size, dtype, CaseUse::kTest));
      for (const bool accumulate : {false, true}) {
        cases.push_back(BackwardCase(size, dtype, accumulate, CaseUse::kTest));
      }
    }
  }
  return cases;
}

}  // namespace weft::kernels::testing
