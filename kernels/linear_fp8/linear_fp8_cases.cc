#include "kernels/linear/linear_ref.h"
#include "kernels/linear_fp8/linear_fp8.h"
#include "kernels/testing/all_cases.h"
#include "kernels/testing/test_device.h"

namespace weft::kernels::testing {
namespace {

struct Problem {
  int64_t m, n, k;
  DType a = DType::kF8E4M3, b = DType::kF8E4M3, c = DType::kBF16;
  bool bias = false, accumulate = false;
  bool fast = false;

  std::string Name() const {
    return "linear_fp8/" + std::to_string(m) + "x" + std::to_string(k) + "x" + std::to_string(n) +
           "/" + std::string(DTypeName(a)) + "*" + std::string(DTypeName(b)) + "-" +
           std::string(DTypeName(c)) + (bias ? "/bias" : "") + (accumulate ? "/accumulate" : "") +
           (fast ? "/fast" : "");
  }
};

OpCase Case(const Problem& p, CaseUse use) {
  return {
      p.Name(), use, [=](OpRun& run) {
        constexpr double kScaleA = 1.0 / 384, kScaleB = 0.037109375;  // exact in f32
        TestTensor& a = run.Input(p.a, {p.m, p.k}, 0, 448);
        TestTensor& b = run.Input(p.b, {p.n, p.k}, 0, 448);
        TestTensor& scale_a = run.tensors.emplace_back(DType::kF32, Shape{1});
        TestTensor& scale_b = run.tensors.emplace_back(DType::kF32, Shape{1});
        scale_a.Assign({kScaleA});
        scale_b.Assign({kScaleB});
        TestTensor* bias = p.bias ? &run.Input(DType::kBF16, {p.n}, 0, 1000.0) : nullptr;
        TestTensor& c = run.tensors.emplace_back(p.c, Shape{p.m, p.n});
        if (p.accumulate) c.Random(run.rng, 1000.0);
        run.Check("c", c, p.k, [=, &a, &b, &scale_a, &c] {
          std::vector<double> x = a.Values();
          for (double& value : x) value *= scale_a.Values()[0] * kScaleB;
          std::vector<double> sums = LinearForwardRef(
              x, b.Values(), bias ? bias->Values() : std::vector<double>(), p.m, p.k, p.n);
          for (size_t i = 0; p.accumulate && i < sums.size(); ++i) {
            sums[i] += c.InitialValues()[i];
          }
          return sums;
        });
        // About 14 bits are left of what a device sums.
        const ScopedTestDevice* where = ScopedTestDevice::Current();
        if (where != nullptr && where->device().type == DeviceType::kCuda && p.c == DType::kF32) {
          run.outputs.back().precision = DType::kF16;
        }
        run.run = [=, &a, &b, &scale_a, &scale_b, &c](const Stream& stream) {
          return MatmulFp8(stream, {.a = {a.view(), scale_a.view()},
                                    .b = {b.view(), scale_b.view()},
                                    .bias = bias ? bias->view() : TensorView(),
                                    .c = c.view(),
                                    .accumulate = p.accumulate,
                                    .fast_sums = p.fast});
        };
        run.bytes = static_cast<double>(a.view().Bytes() + b.view().Bytes() +
                                        (p.accumulate ? 2 : 1) * c.view().Bytes());
        run.flops = 2.0 * static_cast<double>(p.m * p.n * p.k);
        run.compute = DType::kBF16;
      }};
}

}  // namespace

std::vector<OpCase> LinearFp8Cases() {
  constexpr DType kE5M2 = DType::kF8E5M2, kF32 = DType::kF32;
  std::vector<Problem> problems = {
      {.m = 33, .n = 96, .k = 64},
      {.m = 33, .n = 96, .k = 64, .bias = true},
      {.m = 1, .n = 16, .k = 16, .bias = true},
      {.m = 70, .n = 272, .k = 48, .a = kE5M2},
      {.m = 70, .n = 48, .k = 272, .b = kE5M2},
      {.m = 64, .n = 80, .k = 112, .a = kE5M2, .c = kF32},
      {.m = 160, .n = 96, .k = 304, .a = kE5M2, .c = kF32, .accumulate = true},
      {.m = 130, .n = 64, .k = 1024, .bias = true},
      {.m = 32, .n = 32, .k = 32, .bias = true, .fast = true},
      {.m = 32, .n = 96, .k = 32, .fast = true},
      {.m = 16, .n = 32, .k = 32, .bias = true, .fast = true},
  };
  std::vector<OpCase> cases;
  for (const Problem& p : problems) cases.push_back(Case(p, CaseUse::kTest));
  cases.push_back(Case({.m = 2048, .n = 3072, .k = 768, .bias = true}, CaseUse::kSpeed));
  cases.push_back(Case({.m = 3072, .n = 768, .k = 2048, .a = kE5M2, .c = kF32, .accumulate = true},
                       CaseUse::kSpeed));
  return cases;
}

}  // namespace weft::kernels::testing
