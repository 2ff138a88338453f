#include <algorithm>
#include <cmath>

#include "kernels/rope/rope.h"
#include "kernels/rope/rope_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

constexpr int64_t kPositions = 37;
// The roundings within the formula, counted like those of a sum.
constexpr int64_t kTerms = 4;

OpCase Case(int64_t tokens, int64_t heads, int64_t head_dim, DType dtype, bool inverse,
            CaseUse use) {
  const int64_t columns = heads * head_dim, half = head_dim / 2;
  return {
      std::string(inverse ? "rope_inverse/" : "rope/") + std::to_string(tokens) + "x" +
          std::to_string(heads) + "x" + std::to_string(head_dim) + "/" +
          std::string(DTypeName(dtype)),
      use, [=](OpRun& run) {
        TestTensor& x = run.Input(dtype, {tokens, columns}, 24);
        TestTensor& positions = run.tensors.emplace_back(DType::kI32, Shape{tokens});
        positions.RandomIntegers(run.rng, 0, kPositions);
        TestTensor& cosines = run.tensors.emplace_back(DType::kF32, Shape{kPositions, half});
        TestTensor& sines = run.tensors.emplace_back(DType::kF32, Shape{kPositions, half});
        std::vector<double> cosine_values, sine_values;
        for (int64_t i = 0; i < kPositions * half; ++i) {
          const double angle = 6.28 * run.rng.Uniform();
          cosine_values.push_back(std::cos(angle));
          sine_values.push_back(std::sin(angle));
        }
        cosines.Assign(cosine_values);
        sines.Assign(sine_values);
        run.Check("x", x, kTerms, [=, &x, &positions, &cosines, &sines] {
          std::vector<double> values = x.InitialValues(), at = positions.InitialValues();
          const std::vector<double> c = cosines.InitialValues(), s = sines.InitialValues();
          for (int64_t t = 0; t < tokens; ++t) {
            const auto row = values.begin() + t * columns;
            const auto first = static_cast<int64_t>(at[t]) * half;
            const std::vector<double> turned =
                ref::Rope({row, row + columns}, {c.begin() + first, c.begin() + first + half},
                          {s.begin() + first, s.begin() + first + half}, inverse);
            std::copy(turned.begin(), turned.end(), row);
          }
          return values;
        });
        const RopeArgs args = {x.view(), positions.view(), cosines.view(), sines.view(), inverse};
        run.run = [args](const Stream& stream) { return Rope(stream, args); };
        run.bytes = 2.0 * static_cast<double>(x.view().Bytes());
      }};
}

}  // namespace

std::vector<OpCase> RopeCases() {
  std::vector<OpCase> cases;
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (bool inverse : {false, true}) {
      cases.push_back(Case(0, 1, 8, dtype, inverse, CaseUse::kTest));
      cases.push_back(Case(5, 3, 8, dtype, inverse, CaseUse::kTest));
      cases.push_back(Case(130, 2, 24, dtype, inverse, CaseUse::kTest));
      cases.push_back(Case(33, 9, 64, dtype, inverse, CaseUse::kTest));
    }
    cases.push_back(Case(2048, 8, 64, dtype, false, CaseUse::kSpeed));
    cases.push_back(Case(2048, 16, 128, dtype, true, CaseUse::kSpeed));
    if (dtype == DType::kBF16) {
      cases.push_back(Case(65536, 32, 64, dtype, false, CaseUse::kDeviceSpeed));
    }
  }
  return cases;
}

}  // namespace weft::kernels::testing
