// To be timed alone: tests hold the bits and the distribution of estimates.

#include "kernels/sparse24_mvue/sparse24_mvue.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

OpCase Case(int64_t rows, int64_t columns, DType dtype, MvueDraw draw, CaseUse use) {
  const std::string name = "mvue/" + std::to_string(rows) + "x" + std::to_string(columns) + "/" +
                           std::string(DTypeName(dtype)) +
                           (draw == MvueDraw::kSequential ? "/sequential" : "/minimum_variance");
  return {name, use, [=](OpRun& run) {
            const TestTensor& x = run.Input(dtype, {rows, columns});
            const TestTensor& y = run.tensors.emplace_back(dtype, Shape{rows, columns});
            run.run = [=, &x, &y](const Stream& stream) {
              return Mvue(stream, {.x = x.view(), .y = y.view(), .draw = draw, .key = {.seed = 1}});
            };
            run.bytes = static_cast<double>(x.view().Bytes() + y.view().Bytes());
          }};
}

}  // namespace

std::vector<OpCase> Sparse24MvueCases() {
  std::vector<OpCase> cases;
  for (const MvueDraw draw : {MvueDraw::kSequential, MvueDraw::kMinimumVariance}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      cases.push_back(Case(2048, 3072, dtype, draw, CaseUse::kSpeed));
    }
    cases.push_back(Case(65536, 3072, DType::kBF16, draw, CaseUse::kDeviceSpeed));
  }
  return cases;
}

}  // namespace weft::kernels::testing
