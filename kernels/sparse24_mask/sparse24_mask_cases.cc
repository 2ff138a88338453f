// To be timed alone: tests hold the bits of masks, which leave nothing to tolerance.

#include "kernels/sparse24_mask/sparse24_mask.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

OpCase Case(int64_t rows, int64_t columns, DType dtype, bool transposable, CaseUse use) {
  const std::string name = std::string(transposable ? "transposable" : "row") + "_mask/" +
                           std::to_string(rows) + "x" + std::to_string(columns) + "/" +
                           std::string(DTypeName(dtype));
  return {name, use, [=](OpRun& run) {
            const TestTensor& weight = run.Input(dtype, {rows, columns});
            const TestTensor& mask =
                run.tensors.emplace_back(DType::kU16, Shape{rows / 4, columns / 4});
            run.run = [=, &weight, &mask](const Stream& stream) {
              return transposable
                         ? TransposableMask(stream, {.weight = weight.view(), .mask = mask.view()})
                         : RowMask(stream, {.weight = weight.view(), .mask = mask.view()});
            };
            run.bytes = static_cast<double>(weight.view().Bytes() + mask.view().Bytes());
          }};
}

}  // namespace

std::vector<OpCase> Sparse24MaskCases() {
  std::vector<OpCase> cases;
  for (const bool transposable : {true, false}) {
    for (const DType dtype : kMatrixTypes) {
      cases.push_back(Case(3072, 768, dtype, transposable, CaseUse::kSpeed));
      cases.push_back(Case(3072, 768, dtype, transposable, CaseUse::kDeviceSpeed));
      cases.push_back(Case(8192, 2048, dtype, transposable, CaseUse::kDeviceSpeed));
    }
  }
  return cases;
}

}  // namespace weft::kernels::testing
