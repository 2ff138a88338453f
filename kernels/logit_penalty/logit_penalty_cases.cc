#include <string>
#include <vector>

#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/logit_penalty/logit_penalty.h"
#include "kernels/logit_penalty/logit_penalty_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

OpCase LogitPenaltyCase(int64_t rows, int64_t columns, int64_t vocabulary, DType dtype,
                        CaseUse use) {
  const std::string name = "logit_penalty/" + std::to_string(rows) + "x" + std::to_string(columns) +
                           "/" + std::string(DTypeName(dtype));
  constexpr float kScale = 0.5f, kFactor = 0.5f;
  return {name, use, [=](OpRun& run) {
            const int64_t padding = use == CaseUse::kTest ? 5 : 0;
            TestTensor& logits = run.Input(dtype, {rows, columns}, padding, 2);
            TestTensor& gradient = run.Input(dtype, {rows, columns}, padding, 1);
            TestTensor& targets = run.tensors.emplace_back(DType::kI32, Shape{rows});
            targets.RandomIntegers(run.rng, kIgnoreTarget, vocabulary);
            TestTensor& squares =
                run.Output("squares", DType::kF32, {rows}, 0, vocabulary, [=, &logits, &targets] {
                  return LogitSquaresRef(logits.InitialValues(), targets.InitialValues(), columns,
                                         vocabulary);
                });
            run.Check("gradient", gradient, 1, [=, &logits, &targets, &gradient] {
              std::vector<double> sum = gradient.InitialValues();
              const std::vector<double> added =
                  LogitSquaresGradientRef(logits.InitialValues(), targets.InitialValues(), columns,
                                          vocabulary, kScale * kFactor);
              for (size_t i = 0; i < sum.size(); ++i) sum[i] += added[i];
              return sum;
            });
            run.run = [=, &logits, &targets, &gradient, &squares](const Stream& stream) {
              return LogitPenalty(stream, {.logits = logits.view(),
                                           .targets = targets.view(),
                                           .vocabulary = vocabulary,
                                           .grad_scale = kScale,
                                           .factor = kFactor,
                                           .gradient = gradient.view(),
                                           .squares = squares.view()});
            };
            run.bytes = 3 * static_cast<double>(logits.view().Bytes());
          }};
}

}  // namespace

std::vector<OpCase> LogitPenaltyCases() {
  std::vector<OpCase> cases;
  for (const DType dtype : kFloatTypes) {
    cases.push_back(LogitPenaltyCase(1, 1, 1, dtype, CaseUse::kTest));
    cases.push_back(LogitPenaltyCase(9, 67, 61, dtype, CaseUse::kTest));
    cases.push_back(LogitPenaltyCase(5, 1024, 1000, dtype, CaseUse::kTest));
    if (dtype == DType::kF16) continue;
    cases.push_back(LogitPenaltyCase(256, 50304, 50257, dtype, CaseUse::kSpeed));
    cases.push_back(LogitPenaltyCase(8192, 50304, 50257, dtype, CaseUse::kDeviceSpeed));
  }
  return cases;
}

}  // namespace weft::kernels::testing
