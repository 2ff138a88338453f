#include "kernels/quantize_int8/quantize_int8.h"
#include "kernels/quantize_int8/quantize_int8_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

std::string NameOf(const char* op, int64_t rows, int64_t columns, int64_t group, DType dtype) {
  return std::string(op) + "/" + std::to_string(rows) + "x" + std::to_string(columns) + "by" +
         std::to_string(group) + "/" + std::string(DTypeName(dtype));
}

OpCase QuantizeCase(int64_t rows, int64_t columns, int64_t group, DType dtype, CaseUse use) {
  return {
      NameOf("quantize_int8", rows, columns, group, dtype), use, [=](OpRun& run) {
        const int64_t padding = use == CaseUse::kTest && rows % 2 == 1 ? 3 : 0;
        TestTensor& x = run.Input(dtype, {rows, columns}, padding, 3.0);
        const auto truth = [=, &x] { return ref::QuantizeInt8(x.Values(), rows, columns, group); };
        const int64_t groups = (columns + group - 1) / group;
        TestTensor& q =
            run.Output("q", DType::kU8, {rows, columns}, 0, 1, [truth] { return truth().q; });
        TestTensor& scale = run.Output("scale", DType::kF32, {rows, groups}, 0, 1,
                                       [truth] { return truth().scale; });
        const QuantizeInt8Args args = {x.view(), q.view(), scale.view(), group};
        run.run = [args](const Stream& stream) { return QuantizeInt8(stream, args); };
        run.bytes = static_cast<double>(x.view().Bytes() + q.view().Bytes() + scale.view().Bytes());
      }};
}

OpCase DequantizeCase(int64_t rows, int64_t columns, int64_t group, DType dtype, CaseUse use) {
  return {NameOf("dequantize_int8", rows, columns, group, dtype), use, [=](OpRun& run) {
            const int64_t padding = use == CaseUse::kTest && rows % 2 == 1 ? 3 : 0;
            const int64_t groups = (columns + group - 1) / group;
            TestTensor& q = run.tensors.emplace_back(DType::kU8, Shape{rows, columns});
            q.RandomIntegers(run.rng, 0, 256);
            TestTensor& scale = run.Input(DType::kF32, {rows, groups});
            TestTensor& y = run.Output("y", dtype, {rows, columns}, padding, 1, [=, &q, &scale] {
              std::vector<double> values = q.Values();
              const std::vector<double> scales = scale.Values();
              for (int64_t i = 0; i < rows * columns; ++i) {
                if (values[i] > 127) values[i] -= 256;
                values[i] *= scales[i / columns * groups + i % columns / group];
              }
              return values;
            });
            const DequantizeInt8Args args = {q.view(), scale.view(), y.view(), group};
            run.run = [args](const Stream& stream) { return DequantizeInt8(stream, args); };
            run.bytes =
                static_cast<double>(y.view().Bytes() + q.view().Bytes() + scale.view().Bytes());
          }};
}

}  // namespace

std::vector<OpCase> QuantizeInt8Cases() {
  std::vector<OpCase> cases;
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const auto add = [&](int64_t rows, int64_t columns, int64_t group, CaseUse use) {
      cases.push_back(QuantizeCase(rows, columns, group, dtype, use));
      cases.push_back(DequantizeCase(rows, columns, group, dtype, use));
    };
    add(0, 8, 4, CaseUse::kTest);
    add(1, 1, 1, CaseUse::kTest);
    add(7, 33, 10, CaseUse::kTest);
    add(5, 17, 100, CaseUse::kTest);
    add(4, 208, 64, CaseUse::kTest);     // the last group of a row is shorter
    add(2, 1104, 1104, CaseUse::kTest);  // longer than what a warp holds
    add(2048, 768, 128, CaseUse::kSpeed);
    if (dtype == DType::kBF16) add(131072, 4096, 128, CaseUse::kDeviceSpeed);
  }
  return cases;
}

}  // namespace weft::kernels::testing
