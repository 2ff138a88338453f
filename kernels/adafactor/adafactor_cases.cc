#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/adafactor/adafactor.h"
#include "kernels/adafactor/adafactor_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

constexpr float kScale = 0.5f, kLimit = 0.6f, kRate = 0.02f, kExponent = 0.8f, kClip = 0.9f;

TestTensor& PositiveInput(OpRun& run, int64_t count) {
  TestTensor& tensor = run.Input(DType::kF32, {count});
  std::vector<double> values = tensor.Values();
  for (double& value : values) value = std::abs(value) + 0.01;
  tensor.Assign(values);
  return tensor;
}

OpCase AdafactorCase(const std::vector<std::pair<int64_t, int64_t>>& shapes, int64_t step,
                     CaseUse use) {
  std::string name = "adafactor/step" + std::to_string(step);
  for (const auto& [rows, columns] : shapes) {
    name += "/" + std::to_string(rows) + "x" + std::to_string(columns);
  }
  return {name, use, [=](OpRun& run) {
            auto tensors = std::make_shared<std::vector<AdafactorTensor>>();
            for (const auto& shape : shapes) {
              const int64_t rows = shape.first, columns = shape.second;
              TestTensor& p = run.Input(DType::kF32, {rows * columns});
              TestTensor& g = run.Input(DType::kF32, {rows * columns});
              TestTensor& r = PositiveInput(run, rows);
              TestTensor& c = PositiveInput(run, columns);
              const float decay = tensors->empty() ? 0.1f : 0.0f;
              tensors->push_back({.parameter = p.view().As<float>(),
                                  .gradient = g.view().As<float>(),
                                  .row_moment = rows > 1 ? r.view().As<float>() : nullptr,
                                  .column_moment = c.view().As<float>(),
                                  .rows = rows,
                                  .columns = columns,
                                  .weight_decay = decay});
              const auto reference = [=, &p, &g, &r, &c] {
                std::vector<double> gradient = g.InitialValues();
                for (double& value : gradient) {
                  value = std::clamp<double>(kScale * value, -kLimit, kLimit);
                }
                return AdafactorRef({p.InitialValues(), r.InitialValues(), c.InitialValues()},
                                    gradient, rows, columns, kRate, decay, kExponent, kClip, step);
              };
              const int64_t terms = std::max(rows, columns);
              run.Check("parameter", p, terms, [reference] { return reference().parameter; });
              run.Check("columns", c, rows, [reference] { return reference().column_moment; });
              if (rows > 1) {
                run.Check("rows", r, columns, [reference] { return reference().row_moment; });
              }
              // Three reads of the gradient, two of the parameter, and its write.
              run.bytes += 6.0 * static_cast<double>(p.view().Bytes());
            }
            AdafactorArgs args = {.learning_rate = kRate,
                                  .gradient_scale = kScale,
                                  .gradient_limit = kLimit,
                                  .decay_exponent = kExponent,
                                  .clip = kClip,
                                  .step = step};
            if (use == CaseUse::kSpeed || shapes.size() == 1) {
              run.run = [tensors, args](const Stream& stream) mutable {
                args.tensors = *tensors;
                return Adafactor(stream, args);
              };
              return;
            }
            // First an update that is not made, then one with half of its factor behind the gate.
            TestTensor& factor = run.tensors.emplace_back(DType::kF32, Shape{1}).Assign({0.5});
            TestTensor& made = run.tensors.emplace_back(DType::kI32, Shape{2}).Assign({0, 1});
            run.run = [tensors, args, &factor, &made](const Stream& stream) mutable {
              args.tensors = *tensors;
              args.gradient_scale = 2 * kScale;
              args.gate = {factor.view().As<float>(), made.view().As<int32_t>()};
              WEFT_RETURN_IF_ERROR(Adafactor(stream, args));
              ++args.gate.made;
              return Adafactor(stream, args);
            };
          }};
}

}  // namespace

std::vector<OpCase> AdafactorCases() {
  return {
      AdafactorCase({{1, 1}}, 1, CaseUse::kTest),
      AdafactorCase({{3, 5}, {1, 37}, {100, 70}, {5, 1}}, 1, CaseUse::kTest),
      AdafactorCase({{130, 33}, {1, 2000}}, 1000, CaseUse::kTest),
      AdafactorCase({{4096, 4096}, {1, 4096}}, 10, CaseUse::kSpeed),
      AdafactorCase({{16384, 4096}, {1, 4096}}, 10, CaseUse::kDeviceSpeed),
  };
}

}  // namespace weft::kernels::testing
