#include <string>
#include <vector>

#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/cross_entropy/cross_entropy_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

OpCase CrossEntropyCase(int64_t rows, int64_t columns, int64_t vocabulary, DType dtype,
                        bool gradient, double spread, CaseUse use) {
  std::string name = std::string(gradient ? "cross_entropy/" : "cross_entropy_loss/") +
                     std::to_string(rows) + "x" + std::to_string(columns) + "/" +
                     std::string(DTypeName(dtype)) + "/spread" +
                     std::to_string(static_cast<int>(spread));
  constexpr float kScale = 0.25f;
  return {name, use, [=](OpRun& run) {
            int64_t padding = use == CaseUse::kTest ? 5 : 0;
            TestTensor& logits = run.Input(dtype, {rows, columns}, padding, spread);
            TestTensor& targets = run.tensors.emplace_back(DType::kI32, Shape{rows});
            targets.RandomIntegers(run.rng, kIgnoreTarget, vocabulary);
            TestTensor& losses =
                run.Output("losses", DType::kF32, {rows}, 0, vocabulary, [=, &logits, &targets] {
                  return CrossEntropyLossRef(logits.InitialValues(), targets.InitialValues(),
                                             columns, vocabulary);
                });
            run.Check("logits", logits, vocabulary, [=, &logits, &targets] {
              if (!gradient) return logits.InitialValues();
              return CrossEntropyGradientRef(logits.InitialValues(), targets.InitialValues(),
                                             columns, vocabulary, kScale);
            });
            run.run = [=, &logits, &targets, &losses](const Stream& stream) {
              return CrossEntropy(stream, {.logits = logits.view(),
                                           .targets = targets.view(),
                                           .vocabulary = vocabulary,
                                           .grad_scale = kScale,
                                           .write_gradient = gradient,
                                           .losses = losses.view()});
            };
            run.bytes = static_cast<double>(logits.view().Bytes()) * (gradient ? 2 : 1);
          }};
}

}  // namespace

std::vector<OpCase> CrossEntropyCases() {
  std::vector<OpCase> cases;
  for (DType dtype : kFloatTypes) {
    for (bool gradient : {false, true}) {
      cases.push_back(CrossEntropyCase(1, 1, 1, dtype, gradient, 1, CaseUse::kTest));
      cases.push_back(CrossEntropyCase(9, 67, 61, dtype, gradient, 1, CaseUse::kTest));
      cases.push_back(CrossEntropyCase(5, 1024, 1000, dtype, gradient, 90, CaseUse::kTest));
    }
    cases.push_back(CrossEntropyCase(2048, 8192, 8192, dtype, true, 4, CaseUse::kSpeed));
    cases.push_back(CrossEntropyCase(256, 50304, 50257, dtype, true, 4, CaseUse::kSpeed));
    cases.push_back(CrossEntropyCase(256, 50304, 50257, dtype, false, 4, CaseUse::kSpeed));
    if (dtype == DType::kF16) continue;
    cases.push_back(CrossEntropyCase(8192, 50304, 50257, dtype, true, 4, CaseUse::kDeviceSpeed));
    cases.push_back(CrossEntropyCase(8192, 50304, 50257, dtype, false, 4, CaseUse::kDeviceSpeed));
  }
  return cases;
}

}  // namespace weft::kernels::testing
