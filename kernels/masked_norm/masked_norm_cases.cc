#include "kernels/cpu/float_types.h"
#include "kernels/masked_norm/masked_norm.h"
#include "kernels/masked_norm/masked_norm_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

using Values = std::vector<double>;

constexpr float kEpsilon = 1e-5f;

std::string NameOf(const std::string& op, bool layer, int64_t rows, int64_t width, DType dtype) {
  return op + (layer ? "_layer/" : "_rms/") + std::to_string(rows) + "x" + std::to_string(width) +
         "/" + std::string(DTypeName(dtype));
}

/// 1 for most columns; then a share, and 0 at last.
Values MaskOf(int64_t width) {
  Values mask(static_cast<size_t>(width), 1.0);
  for (int64_t c = width / 2; c < width; ++c) mask[static_cast<size_t>(c)] = 0.25;
  mask.back() = 0;
  return mask;
}

Values RoundedTo(DType dtype, Values values) {
  for (double& value : values) {
    cpu::WithFloatType(
        dtype, [&value]<class T>() { value = ToFloat(FromFloat<T>(static_cast<float>(value))); });
  }
  return values;
}

Values Sum(Values a, const Values& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

OpCase ForwardCase(bool layer, int64_t rows, int64_t width, DType dtype, bool adds, CaseUse use) {
  const std::string op = adds ? "masked_norm_forward_add" : "masked_norm_forward";
  return {
      NameOf(op, layer, rows, width, dtype), use, [=](OpRun& run) {
        TestTensor& residual = run.Input(dtype, {rows, width}, 0, 3.0);
        TestTensor& added = run.Input(dtype, {rows, width});
        TestTensor& weight = run.Input(DType::kF32, {width});
        TestTensor& bias = run.Input(DType::kF32, {width});
        TestTensor& mask = run.tensors.emplace_back(DType::kF32, Shape{width});
        mask.Assign(MaskOf(width));
        const auto sum = [=, &residual, &added] {
          return adds ? RoundedTo(dtype, Sum(residual.InitialValues(), added.InitialValues()))
                      : residual.InitialValues();
        };
        const auto reference = [=, &weight, &bias] {
          return ref::MaskedNorm(sum(), weight.InitialValues(),
                                 layer ? bias.InitialValues() : Values(), MaskOf(width), kEpsilon);
        };
        MaskedNormForwardArgs args;
        if (adds) {
          args.delta = added.view();
          args.residual_out = run.Output("residual_out", dtype, {rows, width}, 0, 1, sum).view();
        }
        args.residual = residual.view();
        args.weight = weight.view();
        args.mask = mask.view();
        args.epsilon = kEpsilon;
        TestTensor& y =
            run.Output("y", dtype, {rows, width}, 0, width, [reference] { return reference().y; });
        args.y = y.view();
        args.scale = run.Output("scale", DType::kF32, {rows}, 0, width,
                                [reference] { return reference().scale; })
                         .view();
        if (layer) {
          args.bias = bias.view();
          args.mean = run.Output("mean", DType::kF32, {rows}, 0, width,
                                 [reference] { return reference().mean; })
                          .view();
        }
        run.run = [args](const Stream& stream) { return MaskedNormForward(stream, args); };
        run.bytes = static_cast<double>(y.view().Bytes()) * (adds ? 4 : 2);
      }};
}

OpCase BackwardCase(bool layer, int64_t rows, int64_t width, DType dtype, bool adds, CaseUse use) {
  const std::string op = adds ? "masked_norm_backward_add" : "masked_norm_backward";
  return {
      NameOf(op, layer, rows, width, dtype), use, [=](OpRun& run) {
        TestTensor& dy = run.Input(dtype, {rows, width});
        TestTensor& x = run.Input(dtype, {rows, width}, 0, 3.0);
        TestTensor& weight = run.Input(DType::kF32, {width});
        TestTensor& dresidual = run.Input(dtype, {rows, width});
        TestTensor& dweight = run.Input(DType::kF32, {width});
        TestTensor& dbias = run.Input(DType::kF32, {width});
        TestTensor& mask = run.tensors.emplace_back(DType::kF32, Shape{width});
        TestTensor& mean = run.tensors.emplace_back(DType::kF32, Shape{rows});
        TestTensor& scale = run.tensors.emplace_back(DType::kF32, Shape{rows});
        mask.Assign(MaskOf(width));
        if (use == CaseUse::kTest) {
          const ref::MaskedNormOutput forward = ref::MaskedNorm(
              x.InitialValues(), weight.InitialValues(),
              Values(layer ? static_cast<size_t>(width) : 0), MaskOf(width), kEpsilon);
          mean.Assign(forward.mean);
          scale.Assign(forward.scale);
        } else {
          mean.Random(run.rng);
          scale.Random(run.rng);
        }
        const auto gradient = [=, &dy, &x, &weight] {
          return ref::MaskedNormBackward(dy.InitialValues(), x.InitialValues(),
                                         weight.InitialValues(), layer, MaskOf(width), kEpsilon);
        };
        const auto dx_reference = [=, &dresidual] {
          return adds ? Sum(gradient().dx, dresidual.InitialValues()) : gradient().dx;
        };
        // With the residual's gradient, in place on it.
        if (adds) run.Check("dresidual", dresidual, width, dx_reference);
        TestTensor& dx =
            adds ? dresidual : run.Output("dx", dtype, {rows, width}, 0, width, dx_reference);
        run.Check("dweight", dweight, rows,
                  [=, &dweight] { return Sum(dweight.InitialValues(), gradient().dweight); });
        if (layer) {
          run.Check("dbias", dbias, rows,
                    [=, &dbias] { return Sum(dbias.InitialValues(), gradient().dbias); });
        }
        const MaskedNormBackwardArgs args = {.dy = dy.view(),
                                             .x = x.view(),
                                             .weight = weight.view(),
                                             .mask = mask.view(),
                                             .mean = layer ? mean.view() : TensorView(),
                                             .scale = scale.view(),
                                             .dresidual = adds ? dresidual.view() : TensorView(),
                                             .dx = dx.view(),
                                             .dweight = dweight.view(),
                                             .dbias = layer ? dbias.view() : TensorView()};
        run.run = [args](const Stream& stream) { return MaskedNormBackward(stream, args); };
        run.bytes = static_cast<double>(x.view().Bytes()) * (adds ? 4 : 3);
      }};
}

}  // namespace

std::vector<OpCase> MaskedNormCases() {
  std::vector<OpCase> cases;
  for (const DType dtype : kFloatTypes) {
    for (const bool layer : {true, false}) {
      const auto add = [&](int64_t rows, int64_t width, CaseUse use) {
        for (const bool adds : {false, true}) {
          cases.push_back(ForwardCase(layer, rows, width, dtype, adds, use));
          cases.push_back(BackwardCase(layer, rows, width, dtype, adds, use));
        }
      };
      add(0, 8, CaseUse::kTest);
      add(3, 33, CaseUse::kTest);
      add(5, 64, CaseUse::kTest);
      add(131, 100, CaseUse::kTest);
      add(700, 48, CaseUse::kTest);
      add(2048, 768, CaseUse::kSpeed);
      if (dtype == DType::kBF16) add(65536, 1600, CaseUse::kDeviceSpeed);
    }
  }
  return cases;
}

}  // namespace weft::kernels::testing
