#include "kernels/swiglu/swiglu.h"

#include "kernels/activation/activation_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

// The roundings within the formula, counted like those of a sum.
constexpr int64_t kTerms = 4;

// A gate's function in float64, and what the operations are called with it.
struct Gate {
  GateFunction function;
  const char* forward;
  const char* backward;
  const char* again;
  double (*value)(double);
  double (*derivative)(double);
};
constexpr Gate kSilu = {GateFunction::kSilu,         "swiglu_forward", "swiglu_backward",
                        "swiglu_backward_recompute", ref::Silu,        ref::SiluDerivative};
constexpr Gate kGelu = {GateFunction::kGelu,        "geglu_forward", "geglu_backward",
                        "geglu_backward_recompute", ref::Gelu,       ref::GeluDerivative};
constexpr Gate kErfGelu = {GateFunction::kErfGelu, "geglu_erf_forward",
                           "geglu_erf_backward",   "geglu_erf_backward_recompute",
                           ref::ErfGelu,           ref::ErfGeluDerivative};

std::string NameOf(const char* op, int64_t rows, int64_t width, DType dtype) {
  return std::string(op) + "/" + std::to_string(rows) + "x" + std::to_string(width) + "/" +
         std::string(DTypeName(dtype));
}

std::vector<double> Products(std::vector<double> a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] *= b[i];
  return a;
}

std::vector<double> Mapped(std::vector<double> values, double (*f)(double)) {
  for (double& value : values) value = f(value);
  return values;
}

// Gate and up are the halves of one matrix, as in the engine.
TensorView Half(const TestTensor& both, int64_t width, int64_t half) {
  TensorView view = both.view();
  view.shape.dims[1] = width;
  view.data =
      static_cast<char*>(view.data) + static_cast<size_t>(half * width) * DTypeSize(view.dtype);
  return view;
}

std::vector<double> HalfValues(const TestTensor& both, int64_t width, int64_t half) {
  const std::vector<double> all = both.InitialValues();
  std::vector<double> values;
  for (size_t row = 0; row < all.size(); row += 2 * width) {
    const auto begin = all.begin() + static_cast<int64_t>(row) + half * width;
    values.insert(values.end(), begin, begin + width);
  }
  return values;
}

OpCase ForwardCase(const Gate& its_gate, int64_t rows, int64_t width, DType dtype, CaseUse use) {
  return {NameOf(its_gate.forward, rows, width, dtype), use, [=](OpRun& run) {
            TestTensor& both = run.Input(dtype, {rows, 2 * width}, 0, 3.0);
            TestTensor& y = run.Output("y", dtype, {rows, width}, 0, kTerms, [=, &both] {
              return Products(Mapped(HalfValues(both, width, 0), its_gate.value),
                              HalfValues(both, width, 1));
            });
            const SwiGluForwardArgs args = {Half(both, width, 0), Half(both, width, 1), y.view(),
                                            its_gate.function};
            run.run = [args](const Stream& stream) { return SwiGluForward(stream, args); };
            run.bytes = 3.0 * static_cast<double>(y.view().Bytes());
          }};
}

OpCase BackwardCase(const Gate& its_gate, int64_t rows, int64_t width, DType dtype, bool again,
                    CaseUse use) {
  const char* op = again ? its_gate.again : its_gate.backward;
  return {NameOf(op, rows, width, dtype), use, [=](OpRun& run) {
            TestTensor& both = run.Input(dtype, {rows, 2 * width}, 0, 3.0);
            TestTensor& dy = run.Input(dtype, {rows, width});
            TestTensor& dboth =
                run.Output("dgate and dup", dtype, {rows, 2 * width}, 0, kTerms, [=, &both, &dy] {
                  const std::vector<double> gate = HalfValues(both, width, 0);
                  const std::vector<double> up = HalfValues(both, width, 1);
                  const std::vector<double> d = dy.InitialValues();
                  const auto dgate = Products(Products(d, up), Mapped(gate, its_gate.derivative));
                  const auto dup = Products(d, Mapped(gate, its_gate.value));
                  std::vector<double> values;
                  for (int64_t row = 0; row < rows; ++row) {
                    for (const auto* half : {&dgate, &dup}) {
                      const auto begin = half->begin() + row * width;
                      values.insert(values.end(), begin, begin + width);
                    }
                  }
                  return values;
                });
            SwiGluBackwardArgs args = {.dy = dy.view(),
                                       .gate = Half(both, width, 0),
                                       .up = Half(both, width, 1),
                                       .dgate = Half(dboth, width, 0),
                                       .dup = Half(dboth, width, 1),
                                       .y = {},
                                       .function = its_gate.function};
            // In place on dy, the engine's usual call.
            if (again) {
              args.y = dy.view();
              run.Check("dy", dy, kTerms, [=, &both] {
                return Products(Mapped(HalfValues(both, width, 0), its_gate.value),
                                HalfValues(both, width, 1));
              });
            }
            run.run = [args](const Stream& stream) { return SwiGluBackward(stream, args); };
            run.bytes = static_cast<double>(dy.view().Bytes()) * (again ? 6 : 5);
          }};
}

}  // namespace

std::vector<OpCase> SwiGluCases() {
  std::vector<OpCase> cases;
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const auto add = [&](const Gate& gate, int64_t rows, int64_t width, CaseUse use) {
      cases.push_back(ForwardCase(gate, rows, width, dtype, use));
      cases.push_back(BackwardCase(gate, rows, width, dtype, false, use));
      cases.push_back(BackwardCase(gate, rows, width, dtype, true, use));
    };
    for (const Gate& gate : {kSilu, kGelu, kErfGelu}) {
      add(gate, 0, 8, CaseUse::kTest);
      add(gate, 1, 1, CaseUse::kTest);
      add(gate, 7, 33, CaseUse::kTest);
    }
    add(kSilu, 130, 176, CaseUse::kTest);
    add(kGelu, 9, 176, CaseUse::kTest);
    add(kErfGelu, 9, 176, CaseUse::kTest);
    add(kSilu, 2048, 1024, CaseUse::kSpeed);
    add(kSilu, 2048, 2048, CaseUse::kSpeed);
    add(kGelu, 2048, 2048, CaseUse::kSpeed);
    if (dtype == DType::kBF16) {
      add(kSilu, 16384, 8192, CaseUse::kDeviceSpeed);
      add(kGelu, 16384, 8192, CaseUse::kDeviceSpeed);
    }
  }
  return cases;
}

}  // namespace weft::kernels::testing
