#include "kernels/affine/affine.h"
#include "kernels/affine/affine_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

std::string NameOf(const char* op, int64_t rows, int64_t width, int64_t size, DType dtype) {
  return std::string(op) + (size == 1 ? "_by_one/" : "_by_column/") + std::to_string(rows) + "x" +
         std::to_string(width) + "/" + std::string(DTypeName(dtype));
}

OpCase ForwardCase(int64_t rows, int64_t width, int64_t size, DType dtype, CaseUse use) {
  return {NameOf("affine_forward", rows, width, size, dtype), use, [=](OpRun& run) {
            TestTensor& x = run.Input(dtype, {rows, width});
            TestTensor& scale = run.Input(DType::kF32, {size});
            TestTensor& shift = run.Input(DType::kF32, {size});
            TestTensor& y = run.Output("y", dtype, {rows, width}, 0, 2, [=, &x, &scale, &shift] {
              return ref::Affine(x.InitialValues(), scale.InitialValues(), shift.InitialValues(),
                                 static_cast<size_t>(width));
            });
            const AffineForwardArgs args = {x.view(), scale.view(), shift.view(), y.view()};
            run.run = [args](const Stream& stream) { return AffineForward(stream, args); };
            run.bytes = 2.0 * static_cast<double>(y.view().Bytes());
          }};
}

// dx in place of dy.
OpCase BackwardCase(int64_t rows, int64_t width, int64_t size, DType dtype, CaseUse use) {
  return {NameOf("affine_backward", rows, width, size, dtype), use, [=](OpRun& run) {
            const auto columns = static_cast<size_t>(width);
            const int64_t terms = size == 1 ? rows * width : rows;
            TestTensor& dy = run.Input(dtype, {rows, width});
            TestTensor& x = run.Input(dtype, {rows, width});
            TestTensor& scale = run.Input(DType::kF32, {size});
            TestTensor& dscale = run.Input(DType::kF32, {size});
            TestTensor& dshift = run.Input(DType::kF32, {size});
            run.Check("dx", dy, 1, [=, &dy, &scale] {
              return ref::Affine(dy.InitialValues(), scale.InitialValues(), {}, columns);
            });
            const auto added = [=](const TestTensor& start, const std::vector<double>& a,
                                   const std::vector<double>& b) {
              std::vector<double> sum = start.InitialValues();
              const auto more = ref::ColumnSums(a, b, columns, sum.size());
              for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
              return sum;
            };
            run.Check("dscale", dscale, terms, [=, &dy, &x, &dscale] {
              return added(dscale, dy.InitialValues(), x.InitialValues());
            });
            run.Check("dshift", dshift, terms, [=, &dy, &dshift] {
              const std::vector<double> values = dy.InitialValues();
              return added(dshift, values, std::vector<double>(values.size(), 1.0));
            });
            const AffineBackwardArgs args = {.dy = dy.view(),
                                             .x = x.view(),
                                             .scale = scale.view(),
                                             .dx = dy.view(),
                                             .dscale = dscale.view(),
                                             .dshift = dshift.view()};
            run.run = [args](const Stream& stream) { return AffineBackward(stream, args); };
            run.bytes = 3.0 * static_cast<double>(dy.view().Bytes());
          }};
}

}  // namespace

std::vector<OpCase> AffineCases() {
  std::vector<OpCase> cases;
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (bool one : {false, true}) {
      const auto add = [&](int64_t rows, int64_t width, CaseUse use) {
        const int64_t size = one ? 1 : width;
        cases.push_back(ForwardCase(rows, width, size, dtype, use));
        cases.push_back(BackwardCase(rows, width, size, dtype, use));
      };
      add(0, 8, CaseUse::kTest);
      add(3, 33, CaseUse::kTest);
      add(131, 100, CaseUse::kTest);
      add(700, 48, CaseUse::kTest);
      add(2048, 768, CaseUse::kSpeed);
    }
  }
  return cases;
}

}  // namespace weft::kernels::testing
