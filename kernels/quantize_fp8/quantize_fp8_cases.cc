#include <algorithm>
#include <cmath>

#include "kernels/quantize_fp8/quantize_fp8.h"
#include "kernels/quantize_fp8/quantize_fp8_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

struct Wanted {
  bool q, transposed;
};

// Elements are +-[0.1, 1]; `largest` is what the scale makes of 1.
OpCase Case(int64_t rows, int64_t columns, DType dtype, DType type, float largest, Wanted wanted,
            CaseUse use) {
  const std::string name = "quantize_fp8/" + std::to_string(rows) + "x" + std::to_string(columns) +
                           "/" + std::string(DTypeName(dtype)) + "-" +
                           std::string(DTypeName(type)) + "/to" + std::to_string(largest) +
                           (wanted.q ? "/q" : "") + (wanted.transposed ? "/transposed" : "");
  return {name, use, [=](OpRun& run) {
            const int64_t padding = use == CaseUse::kTest && rows % 2 == 1 ? 3 : 0;
            const int64_t width = (rows + 15) / 16 * 16;
            TestTensor& x = run.Input(dtype, {rows, columns}, padding);
            TestTensor& scale = run.tensors.emplace_back(DType::kF32, Shape{1});
            scale.Assign({largest});
            const auto codes = [=, &x] { return ref::QuantizeFp8(x.Values(), largest, type); };
            TensorView q, transposed;
            if (wanted.q) q = run.Output("q", type, {rows, columns}, 0, 1, codes).view();
            if (wanted.transposed) {
              transposed =
                  run.Output(
                         "transposed", type, {columns, width}, 0, 1,
                         [=] { return ref::TransposedWithZeros(codes(), rows, columns, width); })
                      .view();
            }
            TestTensor& amax = run.tensors.emplace_back(DType::kF32, Shape{1});
            amax.Assign({0.125});
            run.Check("amax", amax, 1, [&x] {
              double most = 0.125;
              for (double value : x.Values()) most = std::max(most, std::abs(value));
              return std::vector<double>{most};
            });
            run.run = [=, &x, &scale, &amax](const Stream& stream) {
              return QuantizeFp8(stream, {.x = x.view(),
                                          .scale = scale.view(),
                                          .q = q,
                                          .transposed = transposed,
                                          .amax = amax.view()});
            };
            run.bytes = static_cast<double>(x.view().Bytes() + q.Bytes() + transposed.Bytes());
          }};
}

OpCase ScalesCase(int64_t tensors, int64_t steps, int64_t slot, int margin) {
  const std::string name = "update_fp8_scales/" + std::to_string(tensors) + "x" +
                           std::to_string(steps) + "at" + std::to_string(slot) + "margin" +
                           std::to_string(margin);
  return {name, CaseUse::kTest, [=](OpRun& run) {
            const auto f32 = [&](const Shape& shape) -> TestTensor& {
              return run.tensors.emplace_back(DType::kF32, shape).Random(run.rng, 3);
            };
            const auto magnitudes = [](TestTensor& tensor) -> TestTensor& {
              std::vector<double> values = tensor.Values();
              for (double& value : values) value = std::abs(value);
              return tensor.Assign(values);
            };
            TestTensor& amax = magnitudes(f32({tensors}));
            TestTensor& history = magnitudes(f32({tensors, steps}));
            TestTensor& codes = f32({tensors});
            codes.Assign(std::vector<double>(static_cast<size_t>(tensors), 448));
            TestTensor& scale = f32({tensors});
            TestTensor& inverse = run.tensors.emplace_back(DType::kF32, Shape{tensors});
            const auto after = [=, &amax, &history] {
              std::vector<double> values = history.InitialValues();
              for (int64_t i = 0; i < tensors; ++i) {
                values[i * steps + slot] = amax.InitialValues()[i];
              }
              return values;
            };
            const auto scales = [=] {
              std::vector<double> values;
              const std::vector<double> all = after();
              for (int64_t i = 0; i < tensors; ++i) {
                const double* row = all.data() + i * steps;
                values.push_back(448 / *std::max_element(row, row + steps) / std::exp2(margin));
              }
              return values;
            };
            run.Check("history", history, 1, after);
            run.Check("amax", amax, 1,
                      [=] { return std::vector<double>(static_cast<size_t>(tensors)); });
            run.Check("scale", scale, 1, scales);
            run.Check("inverse_scale", inverse, 1, [=] {
              std::vector<double> values = scales();
              for (double& value : values) value = 1 / value;
              return values;
            });
            run.run = [=, &amax, &history, &codes, &scale, &inverse](const Stream& stream) {
              return UpdateFp8Scales(stream, {.amax = amax.view(),
                                              .history = history.view(),
                                              .largest_code = codes.view(),
                                              .scale = scale.view(),
                                              .inverse_scale = inverse.view(),
                                              .slot = slot,
                                              .margin = margin});
            };
          }};
}

}  // namespace

std::vector<OpCase> QuantizeFp8Cases() {
  std::vector<OpCase> cases;
  const Wanted both{true, true};
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (DType type : {DType::kF8E4M3, DType::kF8E5M2}) {
      // Some saturate; most are subnormal.
      const float large = type == DType::kF8E4M3 ? 700.0f : 90000.0f;
      const float small = type == DType::kF8E4M3 ? 0.013f : 5e-5f;
      for (float largest : {large, small}) {
        cases.push_back(Case(65, 130, dtype, type, largest, both, CaseUse::kTest));
      }
      cases.push_back(Case(128, 272, dtype, type, large, both, CaseUse::kTest));
      cases.push_back(Case(3, 17, dtype, type, large, both, CaseUse::kTest));
      cases.push_back(Case(48, 128, dtype, type, large, {true, false}, CaseUse::kTest));
      cases.push_back(Case(70, 16, dtype, type, large, {false, true}, CaseUse::kTest));
      cases.push_back(Case(2048, 3072, dtype, type, large, both, CaseUse::kSpeed));
    }
    cases.push_back(Case(37, 530, dtype, DType::kF8E4M3, 1.0f, {false, false}, CaseUse::kTest));
    cases.push_back(Case(0, 16, dtype, DType::kF8E4M3, 1.0f, both, CaseUse::kTest));
  }
  cases.push_back(ScalesCase(3, 1, 0, 0));
  cases.push_back(ScalesCase(5, 1024, 1023, 0));
  cases.push_back(ScalesCase(2, 300, 7, 3));
  return cases;
}

}  // namespace weft::kernels::testing
