#include "kernels/cpu/float_types.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/layer_norm/layer_norm_ref.h"
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
  const char* op = delta == Delta::kNone    ? "layer_norm_forward"
                   : delta == Delta::kAdded ? "layer_norm_forward_add"
                                            : "layer_norm_forward_add_in_place";
  return {
      NameOf(op, rows, width, dtype), use, [=](OpRun& run) {
        TestTensor& residual = run.Input(dtype, {rows, width}, 0, 3.0);
        TestTensor& added = run.Input(dtype, {rows, width});
        TestTensor& weight = run.Input(DType::kF32, {width});
        TestTensor& bias = run.Input(DType::kF32, {width});
        auto sum = [=, &residual, &added] {
          std::vector<double> values = residual.InitialValues(), other = added.InitialValues();
          if (delta == Delta::kNone) return values;
          for (size_t i = 0; i < values.size(); ++i) values[i] += other[i];
          return RoundedTo(dtype, values);
        };
        auto reference = [=, &weight, &bias] {
          return ref::LayerNorm(sum(), {}, weight.InitialValues(), bias.InitialValues(), kEpsilon);
        };
        LayerNormForwardArgs args;
        if (delta == Delta::kAdded) {
          args.residual_out = run.Output("residual_out", dtype, {rows, width}, 0, 1, sum).view();
        } else if (delta == Delta::kInPlace) {
          run.Check("residual", residual, 1, sum);
          args.residual_out = residual.view();
        }
        TestTensor& y =
            run.Output("y", dtype, {rows, width}, 0, width, [reference] { return reference().y; });
        TestTensor& mean = run.Output("mean", DType::kF32, {rows}, 0, width,
                                      [reference] { return reference().mean; });
        TestTensor& rstd = run.Output("rstd", DType::kF32, {rows}, 0, width,
                                      [reference] { return reference().rstd; });
        args.residual = residual.view();
        if (delta != Delta::kNone) args.delta = added.view();
        args.weight = weight.view();
        args.bias = bias.view();
        args.epsilon = kEpsilon;
        args.y = y.view();
        args.mean = mean.view();
        args.rstd = rstd.view();
        run.run = [args](const Stream& stream) { return LayerNormForward(stream, args); };
        run.bytes = static_cast<double>(y.view().Bytes()) * (delta == Delta::kNone ? 2 : 4);
      }};
}

OpCase BackwardCase(int64_t rows, int64_t width, DType dtype, bool with_residual, CaseUse use) {
  const char* op = with_residual ? "layer_norm_backward_add" : "layer_norm_backward";
  return {NameOf(op, rows, width, dtype), use, [=](OpRun& run) {
            TestTensor& dy = run.Input(dtype, {rows, width});
            TestTensor& x = run.Input(dtype, {rows, width}, 0, 3.0);
            TestTensor& weight = run.Input(DType::kF32, {width});
            TestTensor& dresidual = run.Input(dtype, {rows, width});
            TestTensor& dweight = run.Input(DType::kF32, {width});
            TestTensor& dbias = run.Input(DType::kF32, {width});
            TestTensor& mean = run.tensors.emplace_back(DType::kF32, Shape{rows});
            TestTensor& rstd = run.tensors.emplace_back(DType::kF32, Shape{rows});
            if (use == CaseUse::kTest) {
              ref::LayerNormOutput forward =
                  ref::LayerNorm(x.InitialValues(), {}, weight.InitialValues(),
                                 std::vector<double>(static_cast<size_t>(width)), kEpsilon);
              mean.Assign(forward.mean);
              rstd.Assign(forward.rstd);
            } else {
              mean.Random(run.rng);
              rstd.Random(run.rng);
            }
            auto gradient = [&dy, &x, &weight] {
              return ref::LayerNormBackward(dy.InitialValues(), x.InitialValues(),
                                            weight.InitialValues(), kEpsilon);
            };
            auto dx_reference = [=, &dresidual] {
              std::vector<double> dx = gradient().dx, beside = dresidual.InitialValues();
              for (size_t i = 0; with_residual && i < dx.size(); ++i) dx[i] += beside[i];
              return dx;
            };
            auto added = [](TestTensor& tensor, const std::vector<double>& more) {
              std::vector<double> sum = tensor.InitialValues();
              for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
              return sum;
            };
            // With the residual's gradient, in place on it.
            if (with_residual) run.Check("dresidual", dresidual, width, dx_reference);
            TestTensor& dx = with_residual
                                 ? dresidual
                                 : run.Output("dx", dtype, {rows, width}, 0, width, dx_reference);
            run.Check("dweight", dweight, rows,
                      [=, &dweight] { return added(dweight, gradient().dweight); });
            run.Check("dbias", dbias, rows, [=, &dbias] { return added(dbias, gradient().dbias); });
            LayerNormBackwardArgs args = {
                .dy = dy.view(),
                .x = x.view(),
                .weight = weight.view(),
                .mean = mean.view(),
                .rstd = rstd.view(),
                .dresidual = with_residual ? dresidual.view() : TensorView(),
                .dx = dx.view(),
                .dweight = dweight.view(),
                .dbias = dbias.view()};
            run.run = [args](const Stream& stream) { return LayerNormBackward(stream, args); };
            run.bytes = static_cast<double>(x.view().Bytes()) * (with_residual ? 4 : 3);
          }};
}

}  // namespace

std::vector<OpCase> LayerNormCases() {
  std::vector<OpCase> cases;
  for (DType dtype : kFloatTypes) {
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
    add(262144, 768, CaseUse::kDeviceSpeed);
    add(65536, 1600, CaseUse::kDeviceSpeed);
  }
  return cases;
}

}  // namespace weft::kernels::testing
