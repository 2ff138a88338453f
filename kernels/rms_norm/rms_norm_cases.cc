#include "kernels/cpu/float_types.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rms_norm/rms_norm_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

constexpr float kEpsilon = 1e-5f;

std::string NameOf(const char* op, int64_t rows, int64_t width, DType dtype) {
  return std::string(op) + "/" + std::to_string(rows) + "x" + std::to_string(width) + "/" +
         std::string(DTypeName(dtype));
}

std::vector<double> RoundedTo(DType dtype, std::vector<double> values) {
  for (double& value : values) {
    cpu::WithFloatType(
        dtype, [&value]<class T>() { value = ToFloat(FromFloat<T>(static_cast<float>(value))); });
  }
  return values;
}

enum class Delta { kNone, kAdded, kInPlace };

OpCase ForwardCase(int64_t rows, int64_t width, DType dtype, Delta delta, CaseUse use) {
  const char* op = delta == Delta::kNone    ? "rms_norm_forward"
                   : delta == Delta::kAdded ? "rms_norm_forward_add"
                                            : "rms_norm_forward_add_in_place";
  return {
      NameOf(op, rows, width, dtype), use, [=](OpRun& run) {
        TestTensor& residual = run.Input(dtype, {rows, width}, 0, 3.0);
        TestTensor& added = run.Input(dtype, {rows, width});
        TestTensor& weight = run.Input(DType::kF32, {width});
        auto sum = [=, &residual, &added] {
          std::vector<double> values = residual.InitialValues(), other = added.InitialValues();
          if (delta == Delta::kNone) return values;
          for (size_t i = 0; i < values.size(); ++i) values[i] += other[i];
          return RoundedTo(dtype, values);
        };
        auto reference = [=, &weight] {
          return ref::RmsNorm(sum(), weight.InitialValues(), kEpsilon);
        };
        RmsNormForwardArgs args;
        if (delta == Delta::kAdded) {
          args.residual_out = run.Output("residual_out", dtype, {rows, width}, 0, 1, sum).view();
        } else if (delta == Delta::kInPlace) {
          run.Check("residual", residual, 1, sum);
          args.residual_out = residual.view();
        }
        TestTensor& y =
            run.Output("y", dtype, {rows, width}, 0, width, [reference] { return reference().y; });
        TestTensor& rrms = run.Output("rrms", DType::kF32, {rows}, 0, width,
                                      [reference] { return reference().rrms; });
        args.residual = residual.view();
        if (delta != Delta::kNone) args.delta = added.view();
        args.weight = weight.view();
        args.epsilon = kEpsilon;
        args.y = y.view();
        args.rrms = rrms.view();
        run.run = [args](const Stream& stream) { return RmsNormForward(stream, args); };
        run.bytes = static_cast<double>(y.view().Bytes()) * (delta == Delta::kNone ? 2 : 4);
      }};
}

OpCase BackwardCase(int64_t rows, int64_t width, DType dtype, bool with_residual, CaseUse use) {
  const char* op = with_residual ? "rms_norm_backward_add" : "rms_norm_backward";
  return {NameOf(op, rows, width, dtype), use, [=](OpRun& run) {
            TestTensor& dy = run.Input(dtype, {rows, width});
            TestTensor& x = run.Input(dtype, {rows, width}, 0, 3.0);
            TestTensor& weight = run.Input(DType::kF32, {width});
            TestTensor& dresidual = run.Input(dtype, {rows, width});
            TestTensor& dweight = run.Input(DType::kF32, {width});
            TestTensor& rrms = run.tensors.emplace_back(DType::kF32, Shape{rows});
            if (use == CaseUse::kTest) {
              rrms.Assign(ref::RmsNorm(x.InitialValues(), weight.InitialValues(), kEpsilon).rrms);
            } else {
              rrms.Random(run.rng);
            }
            auto gradient = [&dy, &x, &weight] {
              return ref::RmsNormBackward(dy.InitialValues(), x.InitialValues(),
                                          weight.InitialValues(), kEpsilon);
            };
            auto dx_reference = [=, &dresidual] {
              std::vector<double> dx = gradient().dx, beside = dresidual.InitialValues();
              for (size_t i = 0; with_residual && i < dx.size(); ++i) dx[i] += beside[i];
              return dx;
            };
            // With the residual's gradient, in place on it.
            if (with_residual) run.Check("dresidual", dresidual, width, dx_reference);
            TestTensor& dx = with_residual
                                 ? dresidual
                                 : run.Output("dx", dtype, {rows, width}, 0, width, dx_reference);
            run.Check("dweight", dweight, rows, [=, &dweight] {
              std::vector<double> sum = dweight.InitialValues(), more = gradient().dweight;
              for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
              return sum;
            });
            RmsNormBackwardArgs args = {
                .dy = dy.view(),
                .x = x.view(),
                .weight = weight.view(),
                .rrms = rrms.view(),
                .dresidual = with_residual ? dresidual.view() : TensorView(),
                .dx = dx.view(),
                .dweight = dweight.view()};
            run.run = [args](const Stream& stream) { return RmsNormBackward(stream, args); };
            run.bytes = static_cast<double>(x.view().Bytes()) * (with_residual ? 4 : 3);
          }};
}

}  // namespace

std::vector<OpCase> RmsNormCases() {
  std::vector<OpCase> cases;
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    auto add = [&](int64_t rows, int64_t width, CaseUse use) {
      for (Delta delta : {Delta::kNone, Delta::kAdded, Delta::kInPlace}) {
        cases.push_back(ForwardCase(rows, width, dtype, delta, use));
      }
      cases.push_back(BackwardCase(rows, width, dtype, false, use));
      cases.push_back(BackwardCase(rows, width, dtype, true, use));
    };
    add(0, 8, CaseUse::kTest);
    add(3, 33, CaseUse::kTest);
    add(5, 64, CaseUse::kTest);
    add(131, 100, CaseUse::kTest);
    add(700, 48, CaseUse::kTest);
    add(2048, 384, CaseUse::kSpeed);
    add(2048, 768, CaseUse::kSpeed);
    if (dtype != DType::kBF16) continue;
    add(65536, 2048, CaseUse::kDeviceSpeed);
    add(65536, 4096, CaseUse::kDeviceSpeed);
  }
  return cases;
}

}  // namespace weft::kernels::testing
