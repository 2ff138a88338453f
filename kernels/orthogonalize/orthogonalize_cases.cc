#include <algorithm>
#include <string>
#include <vector>

#include "kernels/orthogonalize/orthogonalize.h"
#include "kernels/orthogonalize/orthogonalize_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

constexpr int64_t kIterations = 5;

OpCase OrthogonalizeCase(int64_t rows, int64_t columns, DType compute, CaseUse use) {
  const std::string name = "orthogonalize/" + std::to_string(rows) + "x" + std::to_string(columns) +
                           "/" + std::string(DTypeName(compute));
  return {name, use, [=](OpRun& run) {
            TestTensor& m = run.Input(DType::kF32, {rows, columns});
            // Small singular values grow more than threefold in an iteration, and their errors with
            // them.
            run.Check("matrix", m, 100 * (rows + columns), [=, &m] {
              return OrthogonalizeRef(m.InitialValues(), rows, columns, kIterations);
            });
            TestTensor& workspace = run.tensors.emplace_back(
                DType::kU8, Shape{OrthogonalizeWorkspace(rows, columns, compute)});
            const double longer = static_cast<double>(std::max(rows, columns));
            const double shorter = static_cast<double>(std::min(rows, columns));
            run.flops = kIterations * 2 * shorter * shorter * (2 * longer + shorter);
            run.bytes = 2.0 * static_cast<double>(m.view().Bytes());
            run.compute = compute;
            run.run = [=, &m, &workspace](const Stream& stream) {
              return Orthogonalize(stream, {.matrix = m.view(),
                                            .workspace = workspace.view(),
                                            .iterations = kIterations,
                                            .compute = compute});
            };
          }};
}

}  // namespace

std::vector<OpCase> OrthogonalizeCases() {
  std::vector<OpCase> cases;
  cases.push_back(OrthogonalizeCase(1, 1, DType::kF32, CaseUse::kTest));
  cases.push_back(OrthogonalizeCase(33, 7, DType::kF32, CaseUse::kTest));
  cases.push_back(OrthogonalizeCase(16, 40, DType::kF32, CaseUse::kTest));
  for (DType compute : {DType::kF32, DType::kBF16}) {
    cases.push_back(OrthogonalizeCase(768, 768, compute, CaseUse::kSpeed));
    cases.push_back(OrthogonalizeCase(768, 3072, compute, CaseUse::kSpeed));
    cases.push_back(OrthogonalizeCase(1600, 6400, compute, CaseUse::kDeviceSpeed));
  }
  return cases;
}

}  // namespace weft::kernels::testing
