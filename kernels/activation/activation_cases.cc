#include "kernels/activation/activation.h"

#include <cmath>
#include <utility>

#include "kernels/activation/activation_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

// The roundings within the formula, counted like those of a sum.
constexpr int64_t kTerms = 4;

std::string NameOf(GeluForm form, const char* op, int64_t count, DType dtype) {
  return std::string(form == GeluForm::kErf ? "erf_" : "") + op + "/" + std::to_string(count) +
         "/" + std::string(DTypeName(dtype));
}

std::vector<double> Mapped(std::vector<double> values, double (*f)(double)) {
  for (double& value : values) value = f(value);
  return values;
}

OpCase ForwardCase(GeluForm form, int64_t count, DType dtype, bool in_place, CaseUse use) {
  return {NameOf(form, in_place ? "gelu_forward_in_place" : "gelu_forward", count, dtype), use,
          [=](OpRun& run) {
            TestTensor& x = run.Input(dtype, {count}, 0, 2.0);
            auto reference = [=, &x] { return Mapped(x.InitialValues(), ref::GeluOf(form).value); };
            TestTensor& y = in_place ? x : run.Output("y", dtype, {count}, 0, kTerms, reference);
            if (in_place) run.Check("x", x, kTerms, reference);
            run.run = [=, &x, &y](const Stream& stream) {
              return GeluForward(stream, {.x = x.view(), .y = y.view(), .form = form});
            };
            run.bytes = static_cast<double>(2 * x.view().Bytes());
          }};
}

OpCase BackwardCase(GeluForm form, int64_t count, DType dtype, bool recompute, CaseUse use) {
  return {NameOf(form, recompute ? "gelu_backward_recompute" : "gelu_backward", count, dtype), use,
          [=](OpRun& run) {
            TestTensor& x = run.Input(dtype, {count}, 0, 2.0);
            TestTensor& dy = run.Input(dtype, {count});
            auto reference = [=, &x, &dy] {
              std::vector<double> dx = Mapped(x.InitialValues(), ref::GeluOf(form).derivative);
              std::vector<double> factor = dy.InitialValues();
              for (size_t i = 0; i < dx.size(); ++i) dx[i] *= factor[i];
              return dx;
            };
            // In place when the forward result is wanted too: the engine's usual call.
            if (recompute) run.Check("dy", dy, kTerms, reference);
            TestTensor& dx =
                recompute ? dy : run.Output("dx", dtype, {count}, 0, kTerms, reference);
            GeluBackwardArgs args = {
                .dy = dy.view(), .x = x.view(), .dx = dx.view(), .y = {}, .form = form};
            if (recompute) {
              args.y =
                  run.Output("y", dtype, {count}, 0, kTerms,
                             [=, &x] { return Mapped(x.InitialValues(), ref::GeluOf(form).value); })
                      .view();
            }
            run.run = [args](const Stream& stream) { return GeluBackward(stream, args); };
            run.bytes = static_cast<double>(x.view().Bytes()) * (recompute ? 4 : 3);
          }};
}

std::vector<std::pair<DType, GeluForm>> TypesAndForms() {
  std::vector<std::pair<DType, GeluForm>> all;
  for (DType dtype : kFloatTypes) {
    for (GeluForm form : {GeluForm::kTanh, GeluForm::kErf}) all.emplace_back(dtype, form);
  }
  return all;
}

OpCase TanhForwardCase(int64_t count, DType dtype) {
  return {"tanh_forward/" + std::to_string(count) + "/" + std::string(DTypeName(dtype)),
          CaseUse::kTest, [=](OpRun& run) {
            TestTensor& x = run.Input(dtype, {count}, 0, 2.0);
            TestTensor& y = run.Output("y", dtype, {count}, 0, kTerms, [&x] {
              return Mapped(x.InitialValues(), [](double value) { return std::tanh(value); });
            });
            run.run = [&x, &y](const Stream& stream) {
              return TanhForward(stream, {.x = x.view(), .y = y.view()});
            };
          }};
}

OpCase TanhBackwardCase(int64_t count, DType dtype) {
  return {"tanh_backward/" + std::to_string(count) + "/" + std::string(DTypeName(dtype)),
          CaseUse::kTest, [=](OpRun& run) {
            TestTensor& y = run.Input(dtype, {count}, 0, 0.9);
            TestTensor& dy = run.Input(dtype, {count});
            run.Check("dy", dy, kTerms, [&y, &dy] {
              std::vector<double> dx = dy.InitialValues();
              const std::vector<double> value = y.InitialValues();
              for (size_t i = 0; i < dx.size(); ++i) dx[i] *= 1 - value[i] * value[i];
              return dx;
            });
            run.run = [&y, &dy](const Stream& stream) {
              return TanhBackward(stream, {.dy = dy.view(), .y = y.view(), .dx = dy.view()});
            };
          }};
}

std::string SquaredReluName(const char* pass, int64_t count, DType dtype, bool two_of_four) {
  return std::string("squared_relu_") + pass + "/" + std::to_string(count) + "/" +
         std::string(DTypeName(dtype)) + (two_of_four ? "/two_of_four" : "");
}

OpCase SquaredReluForwardCase(int64_t count, DType dtype, bool two_of_four, CaseUse use) {
  return {SquaredReluName("forward", count, dtype, two_of_four), use, [=](OpRun& run) {
            TestTensor& x = run.Input(dtype, {count}, 0, 2.0);
            TestTensor& y = run.Output("y", dtype, {count}, 0, kTerms, [=, &x] {
              return ref::SquaredRelu(x.InitialValues(), two_of_four).values;
            });
            run.run = [=, &x, &y](const Stream& stream) {
              return SquaredReluForward(stream, {x.view(), y.view(), two_of_four});
            };
            run.bytes = static_cast<double>(2 * x.view().Bytes());
          }};
}

// In place, and with the forward result again: the engine's usual call.
OpCase SquaredReluBackwardCase(int64_t count, DType dtype, bool two_of_four, CaseUse use) {
  return {SquaredReluName("backward", count, dtype, two_of_four), use, [=](OpRun& run) {
            TestTensor& x = run.Input(dtype, {count}, 0, 2.0);
            TestTensor& dy = run.Input(dtype, {count});
            run.Check("dy", dy, kTerms, [=, &x, &dy] {
              std::vector<double> dx = ref::SquaredRelu(x.InitialValues(), two_of_four).derivatives;
              const std::vector<double> factor = dy.InitialValues();
              for (size_t i = 0; i < dx.size(); ++i) dx[i] *= factor[i];
              return dx;
            });
            TestTensor& y = run.Output("y", dtype, {count}, 0, kTerms, [=, &x] {
              return ref::SquaredRelu(x.InitialValues(), two_of_four).values;
            });
            run.run = [=, &x, &dy, &y](const Stream& stream) {
              return SquaredReluBackward(stream,
                                         {dy.view(), x.view(), dy.view(), y.view(), two_of_four});
            };
            run.bytes = static_cast<double>(4 * x.view().Bytes());
          }};
}

std::string UnitName(UnitFunction function, const char* pass, int64_t count, DType dtype) {
  return std::string(function == UnitFunction::kSilu ? "silu_" : "relu_") + pass + "/" +
         std::to_string(count) + "/" + std::string(DTypeName(dtype));
}

OpCase UnitForwardCase(UnitFunction function, int64_t count, DType dtype, CaseUse use) {
  return {UnitName(function, "forward", count, dtype), use, [=](OpRun& run) {
            TestTensor& x = run.Input(dtype, {count}, 0, 2.0);
            TestTensor& y = run.Output("y", dtype, {count}, 0, kTerms, [=, &x] {
              return Mapped(x.InitialValues(), ref::UnitOf(function).value);
            });
            run.run = [=, &x, &y](const Stream& stream) {
              return UnitForward(stream, {x.view(), y.view(), function});
            };
            run.bytes = static_cast<double>(2 * x.view().Bytes());
          }};
}

// In place, and with the forward result again: the engine's usual call.
OpCase UnitBackwardCase(UnitFunction function, int64_t count, DType dtype, CaseUse use) {
  return {UnitName(function, "backward", count, dtype), use, [=](OpRun& run) {
            TestTensor& x = run.Input(dtype, {count}, 0, 2.0);
            TestTensor& dy = run.Input(dtype, {count});
            run.Check("dy", dy, kTerms, [=, &x, &dy] {
              std::vector<double> dx = Mapped(x.InitialValues(), ref::UnitOf(function).derivative);
              const std::vector<double> factor = dy.InitialValues();
              for (size_t i = 0; i < dx.size(); ++i) dx[i] *= factor[i];
              return dx;
            });
            TestTensor& y = run.Output("y", dtype, {count}, 0, kTerms, [=, &x] {
              return Mapped(x.InitialValues(), ref::UnitOf(function).value);
            });
            run.run = [=, &x, &dy, &y](const Stream& stream) {
              return UnitBackward(stream, {dy.view(), x.view(), dy.view(), y.view(), function});
            };
            run.bytes = static_cast<double>(4 * x.view().Bytes());
          }};
}

}  // namespace

std::vector<OpCase> ActivationCases() {
  std::vector<OpCase> cases;
  for (DType dtype : kFloatTypes) {
    for (int64_t count : {0, 1, 17, 5000}) {
      cases.push_back(TanhForwardCase(count, dtype));
      cases.push_back(TanhBackwardCase(count, dtype));
    }
  }
  for (DType dtype : kFloatTypes) {
    for (const bool two_of_four : {false, true}) {
      const auto add = [&](int64_t count, CaseUse use) {
        cases.push_back(SquaredReluForwardCase(count, dtype, two_of_four, use));
        cases.push_back(SquaredReluBackwardCase(count, dtype, two_of_four, use));
      };
      for (const int64_t count : {0, 4, 20, 40000}) add(count, CaseUse::kTest);
      if (!two_of_four) add(4001, CaseUse::kTest);
      add(int64_t{2048} * 4 * 768, CaseUse::kSpeed);
    }
  }
  for (DType dtype : kFloatTypes) {
    for (const UnitFunction function : {UnitFunction::kRelu, UnitFunction::kSilu}) {
      const auto add = [&](int64_t count, CaseUse use) {
        cases.push_back(UnitForwardCase(function, count, dtype, use));
        cases.push_back(UnitBackwardCase(function, count, dtype, use));
      };
      for (const int64_t count : {0, 1, 17, 40001}) add(count, CaseUse::kTest);
      add(int64_t{2048} * 4 * 768, CaseUse::kSpeed);
    }
  }
  for (auto [dtype, form] : TypesAndForms()) {
    auto add = [&, dtype = dtype, form = form](int64_t count, CaseUse use) {
      cases.push_back(ForwardCase(form, count, dtype, false, use));
      cases.push_back(ForwardCase(form, count, dtype, true, use));
      cases.push_back(BackwardCase(form, count, dtype, false, use));
      cases.push_back(BackwardCase(form, count, dtype, true, use));
    };
    for (int64_t count : {0, 1, 15, 16, 17, 40001}) add(count, CaseUse::kTest);
    add(int64_t{2048} * 4 * 384, CaseUse::kSpeed);
    add(int64_t{2048} * 4 * 768, CaseUse::kSpeed);
    if (dtype == DType::kBF16) add(int64_t{65536} * 4 * 768, CaseUse::kDeviceSpeed);
  }
  return cases;
}

}  // namespace weft::kernels::testing
