#include "kernels/hadamard/hadamard.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

constexpr float kFactor = 0.37f;

OpCase HadamardCase(int64_t rows, int64_t columns, bool in_place, CaseUse use) {
  const std::string name = "hadamard/" + std::to_string(rows) + "x" + std::to_string(columns) +
                           (in_place ? "/f32/in_place" : "/f32");
  return {name, use, [=](OpRun& run) {
            TestTensor& a = run.Input(DType::kF32, {rows, columns});
            TestTensor& b = run.Input(DType::kF32, {rows, columns});
            const auto reference = [&a, &b] {
              std::vector<double> product = a.InitialValues();
              const std::vector<double> other = b.InitialValues();
              for (size_t i = 0; i < product.size(); ++i) product[i] *= kFactor * other[i];
              return product;
            };
            TestTensor& y =
                in_place ? b : run.Output("y", DType::kF32, {rows, columns}, 0, 1, reference);
            if (in_place) run.Check("b", b, 1, reference);
            run.run = [&a, &b, &y](const Stream& stream) {
              return Hadamard(stream, {a.view(), b.view(), y.view(), kFactor});
            };
            run.bytes = static_cast<double>(3 * a.view().Bytes());
          }};
}

}  // namespace

std::vector<OpCase> HadamardCases() {
  std::vector<OpCase> cases = {HadamardCase(768, 3072, false, CaseUse::kSpeed),
                               HadamardCase(4096, 11008, false, CaseUse::kDeviceSpeed)};
  // Nothing, less than a vector, and several threads.
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{0, 5}, {3, 5}, {130, 259}}) {
    for (const bool in_place : {false, true}) {
      cases.push_back(HadamardCase(rows, columns, in_place, CaseUse::kTest));
    }
  }
  return cases;
}

}  // namespace weft::kernels::testing
