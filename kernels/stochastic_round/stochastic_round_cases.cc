#include "kernels/stochastic_round/stochastic_round.h"
#include "kernels/stochastic_round/stochastic_round_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

OpCase Case(int64_t count, uint64_t first, double scale, CaseUse use) {
  std::string name = "stochastic_round/" + std::to_string(count) + "from" + std::to_string(first) +
                     "x" + std::to_string(scale);
  return {name, use, [=](OpRun& run) {
            PhiloxKey key = {.seed = 0xfedcba9876543210u, .step = 77, .site = 0x80000001u};
            TestTensor& x = run.Input(DType::kF32, {count}, 0, scale);
            TestTensor& y = run.Output("y", DType::kBF16, {count}, 0, 1, [=, &x] {
              return ref::StochasticRound(x.Values(), key, first);
            });
            // The reference is exact: a neighbour instead would be a difference of bf16's epsilon.
            run.outputs.back().precision = DType::kF32;
            run.run = [=, &x, &y](const Stream& stream) {
              return StochasticRound(
                  stream, {.x = x.view(), .y = y.view(), .key = key, .first_element = first});
            };
            run.bytes = static_cast<double>(x.view().Bytes() + y.view().Bytes());
          }};
}

}  // namespace

std::vector<OpCase> StochasticRoundCases() {
  std::vector<OpCase> cases;
  for (int64_t count : {0, 1, 5, 63, 64, 65, 70001}) {
    cases.push_back(Case(count, 0, 1.0, CaseUse::kTest));
  }
  cases.push_back(Case(2000, (uint64_t{1} << 34) - 400, 1e-6, CaseUse::kTest));
  cases.push_back(Case(int64_t{1} << 22, 0, 1.0, CaseUse::kSpeed));
  cases.push_back(Case(int64_t{1} << 27, 0, 1.0, CaseUse::kDeviceSpeed));
  return cases;
}

}  // namespace weft::kernels::testing
