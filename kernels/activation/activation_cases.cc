#include "kernels/activation/activation.h"
#include "kernels/activation/activation_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

// The roundings within the formula, counted like those of a sum.
constexpr int64_t kTerms = 4;

std::string NameOf(const char* op, int64_t count, DType dtype) {
  return std::string(op) + "/" + std::to_string(count) + "/" + std::string(DTypeName(dtype));
}

std::vector<double> Mapped(std::vector<double> values, double (*f)(double)) {
  for (double& value : values) value = f(value);
  return values;
}

OpCase ForwardCase(int64_t count, DType dtype, bool in_place, CaseUse use) {
  return {NameOf(in_place ? "gelu_forward_in_place" : "gelu_forward", count, dtype), use,
          [=](OpRun& run) {
            TestTensor& x = run.Input(dtype, {count}, 0, 2.0);
            auto reference = [&x] { return Mapped(x.InitialValues(), ref::Gelu); };
            TestTensor& y = in_place ? x : run.Output("y", dtype, {count}, 0, kTerms, reference);
            if (in_place) run.Check("x", x, kTerms, reference);
            run.run = [&x, &y](const Stream& stream) {
              return GeluForward(stream, {.x = x.view(), .y = y.view()});
            };
            run.bytes = static_cast<double>(2 * x.view().Bytes());
          }};
}

OpCase BackwardCase(int64_t count, DType dtype, bool recompute, CaseUse use) {
  return {NameOf(recompute ? "gelu_backward_recompute" : "gelu_backward", count, dtype), use,
          [=](OpRun& run) {
            TestTensor& x = run.Input(dtype, {count}, 0, 2.0);
            TestTensor& dy = run.Input(dtype, {count});
            auto reference = [&x, &dy] {
              std::vector<double> dx = Mapped(x.InitialValues(), ref::GeluDerivative);
              std::vector<double> factor = dy.InitialValues();
              for (size_t i = 0; i < dx.size(); ++i) dx[i] *= factor[i];
              return dx;
            };
            // In place when the forward result is wanted too: the engine's usual call.
            if (recompute) run.Check("dy", dy, kTerms, reference);
            TestTensor& dx =
                recompute ? dy : run.Output("dx", dtype, {count}, 0, kTerms, reference);
            GeluBackwardArgs args = {.dy = dy.view(), .x = x.view(), .dx = dx.view(), .y = {}};
            if (recompute) {
              args.y = run.Output("y", dtype, {count}, 0, kTerms,
                                  [&x] { return Mapped(x.InitialValues(), ref::Gelu); })
                           .view();
            }
            run.run = [args](const Stream& stream) { return GeluBackward(stream, args); };
            run.bytes = static_cast<double>(x.view().Bytes()) * (recompute ? 4 : 3);
          }};
}

}  // namespace

std::vector<OpCase> ActivationCases() {
  std::vector<OpCase> cases;
  for (DType dtype : kFloatTypes) {
    auto add = [&](int64_t count, CaseUse use) {
      cases.push_back(ForwardCase(count, dtype, false, use));
      cases.push_back(ForwardCase(count, dtype, true, use));
      cases.push_back(BackwardCase(count, dtype, false, use));
      cases.push_back(BackwardCase(count, dtype, true, use));
    };
    for (int64_t count : {0, 1, 15, 16, 17, 40001}) add(count, CaseUse::kTest);
    add(int64_t{2048} * 4 * 384, CaseUse::kSpeed);
    add(int64_t{2048} * 4 * 768, CaseUse::kSpeed);
  }
  return cases;
}

}  // namespace weft::kernels::testing
