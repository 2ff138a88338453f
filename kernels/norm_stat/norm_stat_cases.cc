#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/norm_stat/norm_stat.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

// The results of the operation, in the memory of a tensor.
struct Results {
  double sum;
  int64_t non_finite;
};

OpCase NormStatCase(const std::vector<int64_t>& counts, DType dtype, CaseUse use) {
  std::string name = "norm_stat";
  for (int64_t count : counts) name += "/" + std::to_string(count);
  name += "/" + std::string(DTypeName(dtype));
  return {name, use, [=](OpRun& run) {
            auto tensors = std::make_shared<std::vector<NormTensor>>();
            std::vector<const TestTensor*> inputs;
            for (int64_t count : counts) {
              TestTensor& x = run.Input(dtype, {count});
              inputs.push_back(&x);
              if (dtype == DType::kBF16) {
                tensors->push_back({nullptr, count, x.view().As<BFloat16>()});
              } else {
                tensors->push_back({x.view().As<float>(), count});
              }
              run.bytes += static_cast<double>(x.view().Bytes());
            }
            TestTensor& memory = run.tensors.emplace_back(
                DType::kI32, Shape{static_cast<int64_t>(sizeof(Results) / sizeof(int32_t))});
            TestTensor& sum = run.Output("sum", DType::kF32, {1}, 0, 1, [inputs] {
              double squares = 0;
              for (const TestTensor* x : inputs) {
                for (double value : x->InitialValues()) squares += value * value;
              }
              return std::vector<double>{squares};
            });
            run.run = [tensors, &memory, &sum](const Stream& stream) -> Status {
              auto* to = static_cast<Results*>(memory.view().data);
              WEFT_RETURN_IF_ERROR(NormStat(stream, {.tensors = *tensors,
                                                     .sum_of_squares = &to->sum,
                                                     .non_finite = &to->non_finite}));
              if (stream.cuda != nullptr) WEFT_RETURN_IF_ERROR(stream.cuda->Synchronize());
              memory.Fetch();
              Results results;
              std::memcpy(&results, memory.bytes().data(), sizeof results);
              sum.Assign({results.sum}).Reset();
              return results.non_finite == 0 ? OkStatus() : InternalError("counts finite elements");
            };
          }};
}

}  // namespace

std::vector<OpCase> NormStatCases() {
  std::vector<OpCase> cases;
  for (DType dtype : kMatrixTypes) {
    cases.push_back(NormStatCase({}, dtype, CaseUse::kTest));
    cases.push_back(NormStatCase({1}, dtype, CaseUse::kTest));
    cases.push_back(NormStatCase({17, 0, 50001, 3}, dtype, CaseUse::kTest));
    cases.push_back(NormStatCase({int64_t{1} << 24, int64_t{1} << 20}, dtype, CaseUse::kSpeed));
    cases.push_back(
        NormStatCase({int64_t{1} << 28, int64_t{1} << 20}, dtype, CaseUse::kDeviceSpeed));
  }
  return cases;
}

}  // namespace weft::kernels::testing
