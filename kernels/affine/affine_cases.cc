#include "kernels/affine/affine.h"
#include "kernels/affine/affine_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

// How many numbers scale and shift have: one for each column, one for all, or none.
enum class Numbers { kByColumn, kOne, kNone };

struct Kind {
  const char* name;
  Numbers scale;
  Numbers shift;
};

constexpr Kind kKinds[] = {
    {"by_column", Numbers::kByColumn, Numbers::kByColumn},
    {"by_one", Numbers::kOne, Numbers::kOne},
    {"scale_by_column_shift_by_one", Numbers::kByColumn, Numbers::kOne},
    {"scale", Numbers::kOne, Numbers::kNone},
    {"shift", Numbers::kNone, Numbers::kByColumn},
};

std::string NameOf(const char* op, const Kind& kind, int64_t rows, int64_t width, DType dtype) {
  return std::string(op) + "_" + kind.name + "/" + std::to_string(rows) + "x" +
         std::to_string(width) + "/" + std::string(DTypeName(dtype));
}

int64_t SizeOf(Numbers numbers, int64_t width) {
  if (numbers == Numbers::kNone) return 0;
  return numbers == Numbers::kOne ? 1 : width;
}

TensorView ViewOrNone(const TestTensor& tensor) {
  return tensor.view().shape.Elements() == 0 ? TensorView() : tensor.view();
}

OpCase ForwardCase(int64_t rows, int64_t width, const Kind& kind, DType dtype, CaseUse use) {
  return {
      NameOf("affine_forward", kind, rows, width, dtype), use, [=](OpRun& run) {
        TestTensor& x = run.Input(dtype, {rows, width});
        TestTensor& scale = run.Input(DType::kF32, {SizeOf(kind.scale, width)});
        TestTensor& shift = run.Input(DType::kF32, {SizeOf(kind.shift, width)});
        TestTensor& y = run.Output("y", dtype, {rows, width}, 0, 2, [=, &x, &scale, &shift] {
          return ref::Affine(x.InitialValues(), scale.InitialValues(), shift.InitialValues(),
                             static_cast<size_t>(width));
        });
        const AffineForwardArgs args = {x.view(), ViewOrNone(scale), ViewOrNone(shift), y.view()};
        run.run = [args](const Stream& stream) { return AffineForward(stream, args); };
        run.bytes = 2.0 * static_cast<double>(y.view().Bytes());
      }};
}

// dx in place of dy.
OpCase BackwardCase(int64_t rows, int64_t width, const Kind& kind, DType dtype, CaseUse use) {
  return {NameOf("affine_backward", kind, rows, width, dtype), use, [=](OpRun& run) {
            const auto columns = static_cast<size_t>(width);
            const auto terms_of = [=](Numbers numbers) {
              return numbers == Numbers::kOne ? rows * width : rows;
            };
            TestTensor& dy = run.Input(dtype, {rows, width});
            TestTensor& x = run.Input(dtype, {rows, width});
            TestTensor& scale = run.Input(DType::kF32, {SizeOf(kind.scale, width)});
            TestTensor& dscale = run.Input(DType::kF32, {SizeOf(kind.scale, width)});
            TestTensor& dshift = run.Input(DType::kF32, {SizeOf(kind.shift, width)});
            run.Check("dx", dy, 1, [=, &dy, &scale] {
              return ref::Affine(dy.InitialValues(), scale.InitialValues(), {}, columns);
            });
            const auto added = [=](const TestTensor& start, const std::vector<double>& a,
                                   const std::vector<double>& b) {
              std::vector<double> sum = start.InitialValues();
              if (sum.empty()) return sum;
              const auto more = ref::ColumnSums(a, b, columns, sum.size());
              for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
              return sum;
            };
            run.Check("dscale", dscale, terms_of(kind.scale), [=, &dy, &x, &dscale] {
              return added(dscale, dy.InitialValues(), x.InitialValues());
            });
            run.Check("dshift", dshift, terms_of(kind.shift), [=, &dy, &dshift] {
              const std::vector<double> values = dy.InitialValues();
              return added(dshift, values, std::vector<double>(values.size(), 1.0));
            });
            const AffineBackwardArgs args = {.dy = dy.view(),
                                             .x = x.view(),
                                             .scale = ViewOrNone(scale),
                                             .dx = dy.view(),
                                             .dscale = ViewOrNone(dscale),
                                             .dshift = ViewOrNone(dshift)};
            run.run = [args](const Stream& stream) { return AffineBackward(stream, args); };
            run.bytes = 3.0 * static_cast<double>(dy.view().Bytes());
          }};
}

}  // namespace

std::vector<OpCase> AffineCases() {
  std::vector<OpCase> cases;
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Kind& kind : kKinds) {
      const auto add = [&](int64_t rows, int64_t width, CaseUse use) {
        cases.push_back(ForwardCase(rows, width, kind, dtype, use));
        cases.push_back(BackwardCase(rows, width, kind, dtype, use));
      };
      add(0, 8, CaseUse::kTest);
      add(3, 33, CaseUse::kTest);
      add(131, 100, CaseUse::kTest);
      add(700, 48, CaseUse::kTest);
    }
    for (const Kind& kind : {kKinds[0], kKinds[1]}) {
      cases.push_back(ForwardCase(2048, 768, kind, dtype, CaseUse::kSpeed));
      cases.push_back(BackwardCase(2048, 768, kind, dtype, CaseUse::kSpeed));
      if (dtype != DType::kBF16) continue;
      cases.push_back(ForwardCase(65536, 2048, kind, dtype, CaseUse::kDeviceSpeed));
      cases.push_back(BackwardCase(65536, 2048, kind, dtype, CaseUse::kDeviceSpeed));
    }
  }
  return cases;
}

}  // namespace weft::kernels::testing
