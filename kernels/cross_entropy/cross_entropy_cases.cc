#include <string>
#include <vector>

#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/cross_entropy/cross_entropy_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

std::vector<double> ValuesOf(const TestTensor* tensor) {
  return tensor != nullptr ? tensor->InitialValues() : std::vector<double>();
}

OpCase CrossEntropyCase(int64_t rows, int64_t columns, int64_t vocabulary, DType dtype,
                        bool gradient, double spread, CaseUse use, bool weighs = false) {
  std::string name = std::string(gradient ? "cross_entropy/" : "cross_entropy_loss/") +
                     (weighs ? "weighed/" : "") + std::to_string(rows) + "x" +
                     std::to_string(columns) + "/" + std::string(DTypeName(dtype)) + "/spread" +
                     std::to_string(static_cast<int>(spread));
  constexpr float kScale = 0.25f;
  return {name, use, [=](OpRun& run) {
            int64_t padding = use == CaseUse::kTest ? 5 : 0;
            TestTensor& logits = run.Input(dtype, {rows, columns}, padding, spread);
            TestTensor& targets = run.tensors.emplace_back(DType::kI32, Shape{rows});
            targets.RandomIntegers(run.rng, kIgnoreTarget, vocabulary);
            const TestTensor* weights = weighs ? &run.Input(DType::kF32, {rows}, 0, 2) : nullptr;
            TestTensor& losses =
                run.Output("losses", DType::kF32, {rows}, 0, vocabulary, [=, &logits, &targets] {
                  return CrossEntropyLossRef(logits.InitialValues(), targets.InitialValues(),
                                             columns, vocabulary);
                });
            run.Check("logits", logits, vocabulary, [=, &logits, &targets] {
              if (!gradient) return logits.InitialValues();
              return CrossEntropyGradientRef(logits.InitialValues(), targets.InitialValues(),
                                             columns, vocabulary, kScale, ValuesOf(weights));
            });
            run.run = [=, &logits, &targets, &losses](const Stream& stream) {
              return CrossEntropy(stream,
                                  {.logits = logits.view(),
                                   .targets = targets.view(),
                                   .vocabulary = vocabulary,
                                   .grad_scale = kScale,
                                   .write_gradient = gradient,
                                   .losses = losses.view(),
                                   .gradient_weights = weighs ? weights->view() : TensorView()});
            };
            run.bytes = static_cast<double>(logits.view().Bytes()) * (gradient ? 2 : 1);
          }};
}

// Logits of `ranks` ranks with `columns` each; the last rank does not use all of its columns.
struct Parts {
  int64_t rows;
  int64_t columns;
  int64_t ranks;
  int64_t unused;

  int64_t vocabulary() const { return columns * ranks - unused; }
  LogitsPart Of(int64_t rank) const {
    return {.first = rank * columns,
            .columns = columns - (rank + 1 == ranks ? unused : 0),
            .vocabulary = vocabulary()};
  }
};

// Every rank measures, then every rank computes its own columns: against the operation on all
// columns side by side.
OpCase CrossEntropyOfPartsCase(const Parts& parts, DType dtype, bool gradient,
                               bool weighs = false) {
  std::string name = std::string("cross_entropy_of_parts/") + std::to_string(parts.rows) + "x" +
                     std::to_string(parts.columns) + "x" + std::to_string(parts.ranks) +
                     (gradient ? "/gradient/" : "/loss/") + (weighs ? "weighed/" : "") +
                     std::string(DTypeName(dtype));
  constexpr float kScale = 0.25f;
  return {
      name, CaseUse::kTest, [=](OpRun& run) {
        const int64_t rows = parts.rows, vocabulary = parts.vocabulary();
        std::vector<TestTensor*> logits;
        for (int64_t rank = 0; rank < parts.ranks; ++rank) {
          logits.push_back(&run.Input(dtype, {rows, parts.columns}, 5, 8));
        }
        TestTensor& targets = run.tensors.emplace_back(DType::kI32, Shape{rows});
        targets.RandomIntegers(run.rng, kIgnoreTarget, vocabulary);
        const TestTensor* weights = weighs ? &run.Input(DType::kF32, {rows}, 0, 2) : nullptr;
        const auto whole = [=] {
          std::vector<double> all(static_cast<size_t>(rows * vocabulary));
          for (int64_t rank = 0; rank < parts.ranks; ++rank) {
            const std::vector<double> values = logits[rank]->InitialValues();
            const LogitsPart part = parts.Of(rank);
            for (int64_t i = 0; i < rows * part.columns; ++i) {
              const int64_t r = i / part.columns, c = i % part.columns;
              all[r * vocabulary + part.first + c] = values[r * parts.columns + c];
            }
          }
          return all;
        };
        TestTensor& found =
            run.tensors.emplace_back(DType::kF32, Shape{parts.ranks * kLogitsPartNumbers, rows});
        std::vector<TestTensor*> losses;
        for (int64_t rank = 0; rank < parts.ranks; ++rank) {
          losses.push_back(&run.Output(
              "losses" + std::to_string(rank), DType::kF32, {rows}, 0, vocabulary, [=, &targets] {
                return CrossEntropyLossRef(whole(), targets.InitialValues(), vocabulary,
                                           vocabulary);
              }));
          run.Check("logits" + std::to_string(rank), *logits[rank], vocabulary, [=, &targets] {
            std::vector<double> values = logits[rank]->InitialValues();
            if (!gradient) return values;
            const std::vector<double> all =
                CrossEntropyGradientRef(whole(), targets.InitialValues(), vocabulary, vocabulary,
                                        kScale, ValuesOf(weights));
            const LogitsPart part = parts.Of(rank);
            for (int64_t i = 0; i < rows * parts.columns; ++i) {
              const int64_t r = i / parts.columns, c = i % parts.columns;
              values[i] = c < part.columns ? all[r * vocabulary + part.first + c] : 0.0;
            }
            return values;
          });
        }
        run.run = [=, &targets, &found](const Stream& stream) -> Status {
          for (int64_t rank = 0; rank < parts.ranks; ++rank) {
            TensorView own = found.view();
            own.data = own.As<float>() + rank * kLogitsPartNumbers * rows;
            own.shape = {kLogitsPartNumbers, rows};
            WEFT_RETURN_IF_ERROR(MeasureLogitsPart(stream, {.logits = logits[rank]->view(),
                                                            .targets = targets.view(),
                                                            .part = parts.Of(rank),
                                                            .found = own}));
          }
          for (int64_t rank = 0; rank < parts.ranks; ++rank) {
            WEFT_RETURN_IF_ERROR(CrossEntropyOfParts(
                stream, {.logits = logits[rank]->view(),
                         .targets = targets.view(),
                         .part = parts.Of(rank),
                         .found = found.view(),
                         .grad_scale = kScale,
                         .write_gradient = gradient,
                         .losses = losses[rank]->view(),
                         .gradient_weights = weighs ? weights->view() : TensorView()}));
          }
          return OkStatus();
        };
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
    cases.push_back(CrossEntropyCase(9, 67, 61, dtype, true, 1, CaseUse::kTest, true));
    cases.push_back(CrossEntropyOfPartsCase({9, 67, 3, 6}, dtype, true));
    cases.push_back(CrossEntropyOfPartsCase({9, 67, 3, 6}, dtype, true, true));
    cases.push_back(CrossEntropyOfPartsCase({5, 33, 2, 0}, dtype, false));
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
