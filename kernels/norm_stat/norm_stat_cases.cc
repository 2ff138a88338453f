#include <memory>
#include <string>
#include <vector>

#include "kernels/norm_stat/norm_stat.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

OpCase NormStatCase(const std::vector<int64_t>& counts, CaseUse use) {
  std::string name = "norm_stat";
  for (int64_t count : counts) name += "/" + std::to_string(count);
  return {
      name, use, [=](OpRun& run) {
        auto tensors = std::make_shared<std::vector<NormTensor>>();
        std::vector<const TestTensor*> inputs;
        for (int64_t count : counts) {
          TestTensor& x = run.Input(DType::kF32, {count});
          inputs.push_back(&x);
          tensors->push_back({x.view().As<float>(), count});
          run.bytes += static_cast<double>(x.view().Bytes());
        }
        TestTensor& result = run.Output("sum", DType::kF32, {1}, 0, 1, [inputs] {
          double sum = 0;
          for (const TestTensor* x : inputs) {
            for (double value : x->Values()) sum += value * value;
          }
          return std::vector<double>{sum};
        });
        run.run = [tensors, &result](const Stream& stream) -> Status {
          double sum = -1;
          int64_t non_finite = -1;
          WEFT_RETURN_IF_ERROR(NormStat(
              stream, {.tensors = *tensors, .sum_of_squares = &sum, .non_finite = &non_finite}));
          *result.view().As<float>() = static_cast<float>(sum);
          return non_finite == 0 ? OkStatus() : InternalError("counts finite elements");
        };
      }};
}

}  // namespace

std::vector<OpCase> NormStatCases() {
  return {
      NormStatCase({}, CaseUse::kTest),
      NormStatCase({1}, CaseUse::kTest),
      NormStatCase({17, 0, 50001, 3}, CaseUse::kTest),
      NormStatCase({int64_t{1} << 24, int64_t{1} << 20}, CaseUse::kSpeed),
  };
}

}  // namespace weft::kernels::testing
