#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/activation/activation_ref.h"
#include "kernels/cpu/isa.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

struct Dims {
  int64_t rows, in, out;

  std::string Name(DType dtype) const {
    return std::to_string(rows) + "x" + std::to_string(in) + "x" + std::to_string(out) + "/" +
           std::string(DTypeName(dtype));
  }
  double Flops() const { return 2.0 * static_cast<double>(rows * in * out); }
  /// Bytes of a product and its operands, given what an element of each costs.
  double Bytes(int64_t x, int64_t weight, int64_t y) const {
    return static_cast<double>(rows * in * x + in * out * weight + rows * out * y);
  }
};

// Gaps between rows in some test cases: views into wider matrices.
int64_t Padding(CaseUse use, const Dims& dims) {
  return use == CaseUse::kTest && dims.rows % 2 == 1 ? 3 : 0;
}

// A stored weight whose elements bf16 holds exactly, so that packing loses nothing.
TestTensor& Master(OpRun& run, const Dims& dims, DType stored = DType::kF32) {
  if (dims.out * dims.in > TestTensor::kMostKept) {
    return run.Input(stored, {dims.out, dims.in});  // Of a size to be timed.
  }
  TestTensor rounded(DType::kBF16, {dims.out, dims.in});
  rounded.Random(run.rng);
  TestTensor& master = run.tensors.emplace_back(stored, Shape{dims.out, dims.in});
  return master.Assign(rounded.Values());
}

std::string FromName(DType stored) {
  return stored == DType::kF32 ? "" : "/from_" + std::string(DTypeName(stored));
}

// Packs `master` once for each instruction set: layouts may differ between them.
class PackedByIsa {
 public:
  PackedByIsa(const TestTensor& master, DType compute) : master_(master), compute_(compute) {}

  Result<const PackedWeight*> Get(const Stream& stream) {
    std::unique_ptr<PackedWeight>& weight = weights_[cpu::ActiveIsa()];
    if (weight == nullptr) {
      TensorView view = master_.view();
      WEFT_ASSIGN_OR_RETURN(weight,
                            NewPackedWeight(stream.device, view.shape[0], view.shape[1], compute_));
      WEFT_RETURN_IF_ERROR(weight->Pack(stream, view));
    }
    return weight.get();
  }

 private:
  const TestTensor& master_;
  DType compute_;
  std::map<cpu::Isa, std::unique_ptr<PackedWeight>> weights_;
};

OpCase ForwardCase(Dims dims, DType dtype, DType result, bool with_bias, CaseUse use,
                   DType stored = DType::kF32) {
  std::string name = "linear_forward/" + dims.Name(dtype) +
                     (result == dtype ? "" : "-" + std::string(DTypeName(result))) +
                     (with_bias ? "/bias" : "") + FromName(stored);
  return {name, use, [=](OpRun& run) {
            TestTensor& x = run.Input(dtype, {dims.rows, dims.in}, Padding(use, dims));
            TestTensor& w = Master(run, dims, stored);
            TestTensor* bias = with_bias ? &run.Input(DType::kF32, {dims.out}) : nullptr;
            TestTensor& y = run.Output(
                "y", result, {dims.rows, dims.out}, Padding(use, dims), dims.in, [=, &x, &w] {
                  return LinearForwardRef(x.Values(), w.Values(),
                                          bias ? bias->Values() : std::vector<double>(), dims.rows,
                                          dims.in, dims.out);
                });
            auto weight = std::make_shared<PackedByIsa>(w, dtype);
            run.run = [=, &x, &y](const Stream& stream) -> Status {
              WEFT_ASSIGN_OR_RETURN(const PackedWeight* packed, weight->Get(stream));
              return LinearForward(stream, {.x = x.view(),
                                            .weight = packed,
                                            .bias = bias ? bias->view() : TensorView(),
                                            .y = y.view()});
            };
            run.flops = dims.Flops();
            run.bytes = dims.Bytes(DTypeSize(dtype), DTypeSize(dtype), DTypeSize(result));
            run.compute = dtype;
          }};
}

OpCase ForwardAddCase(Dims dims, DType dtype) {
  return {"linear_forward/" + dims.Name(dtype) + "/accumulate", CaseUse::kTest, [=](OpRun& run) {
            TestTensor& x = run.Input(dtype, {dims.rows, dims.in}, Padding(CaseUse::kTest, dims));
            TestTensor& w = Master(run, dims, DType::kF32);
            TestTensor& y = run.tensors.emplace_back(dtype, Shape{dims.rows, dims.out},
                                                     Padding(CaseUse::kTest, dims));
            y.Random(run.rng);
            run.Check("y", y, dims.in, [=, &x, &w, &y] {
              std::vector<double> sum =
                  LinearForwardRef(x.Values(), w.Values(), {}, dims.rows, dims.in, dims.out);
              const std::vector<double> before = y.InitialValues();
              for (size_t i = 0; i < sum.size(); ++i) sum[i] += before[i];
              return sum;
            });
            auto weight = std::make_shared<PackedByIsa>(w, dtype);
            run.run = [=, &x, &y](const Stream& stream) -> Status {
              WEFT_ASSIGN_OR_RETURN(const PackedWeight* packed, weight->Get(stream));
              return LinearForward(
                  stream, {.x = x.view(), .weight = packed, .y = y.view(), .accumulate = true});
            };
            run.flops = dims.Flops();
            run.bytes = dims.Bytes(DTypeSize(dtype), DTypeSize(dtype), 2 * DTypeSize(dtype));
            run.compute = dtype;
          }};
}

OpCase BackwardInputCase(Dims dims, DType dtype, bool accumulate, CaseUse use,
                         DType stored = DType::kF32) {
  std::string name = "linear_backward_input/" + dims.Name(dtype) +
                     (accumulate ? "/accumulate" : "") + FromName(stored);
  return {name, use, [=](OpRun& run) {
            TestTensor& dy = run.Input(dtype, {dims.rows, dims.out}, Padding(use, dims));
            TestTensor& w = Master(run, dims, stored);
            TestTensor& dx =
                run.tensors.emplace_back(dtype, Shape{dims.rows, dims.in}, Padding(use, dims));
            if (accumulate) dx.Random(run.rng);
            run.Check("dx", dx, dims.out, [=, &dy, &w, &dx] {
              return LinearBackwardInputRef(dy.Values(), w.Values(),
                                            accumulate ? dx.InitialValues() : std::vector<double>(),
                                            dims.rows, dims.in, dims.out);
            });
            auto weight = std::make_shared<PackedByIsa>(w, dtype);
            run.run = [=, &dy, &dx](const Stream& stream) -> Status {
              WEFT_ASSIGN_OR_RETURN(const PackedWeight* packed, weight->Get(stream));
              return LinearBackwardInput(
                  stream,
                  {.dy = dy.view(), .weight = packed, .dx = dx.view(), .accumulate = accumulate});
            };
            run.flops = dims.Flops();
            run.bytes = dims.Bytes((accumulate ? 2 : 1) * DTypeSize(dtype), DTypeSize(dtype),
                                   DTypeSize(dtype));
            run.compute = dtype;
          }};
}

OpCase BackwardWeightCase(Dims dims, DType dtype, bool with_bias, bool accumulate, CaseUse use) {
  std::string name = "linear_backward_weight/" + dims.Name(dtype) +
                     (accumulate ? "/accumulate" : "") + (with_bias ? "/bias" : "");
  return {name, use, [=](OpRun& run) {
            TestTensor& x = run.Input(dtype, {dims.rows, dims.in}, Padding(use, dims));
            TestTensor& dy = run.Input(dtype, {dims.rows, dims.out}, Padding(use, dims));
            TestTensor& dw = run.tensors.emplace_back(DType::kF32, Shape{dims.out, dims.in});
            TestTensor& db = run.tensors.emplace_back(DType::kF32, Shape{dims.out});
            if (accumulate) {
              dw.Random(run.rng);
              db.Random(run.rng);
            }
            auto before = [=](const TestTensor& tensor) {
              return accumulate ? tensor.InitialValues() : std::vector<double>();
            };
            run.Check("dweight", dw, dims.rows, [=, &x, &dy, &dw] {
              return LinearBackwardWeightRef(x.Values(), dy.Values(), before(dw), dims.rows,
                                             dims.in, dims.out);
            });
            if (with_bias) {
              run.Check("dbias", db, dims.rows, [=, &dy, &db] {
                return BiasGradientRef(dy.Values(), before(db), dims.rows, dims.out);
              });
            }
            run.run = [=, &x, &dy, &dw, &db](const Stream& stream) {
              return LinearBackwardWeight(stream, {.x = x.view(),
                                                   .dy = dy.view(),
                                                   .dweight = dw.view(),
                                                   .dbias = with_bias ? db.view() : TensorView(),
                                                   .accumulate = accumulate});
            };
            run.flops = dims.Flops();
            run.bytes = dims.Bytes(DTypeSize(dtype), (accumulate ? 2 : 1) * DTypeSize(DType::kF32),
                                   DTypeSize(dtype));
            run.compute = dtype;
          }};
}

// Makes values around 0, where GELU bends. They may pass through the type in between.
double GeluScale(const Dims& dims) {
  return 1 / std::sqrt(static_cast<double>(dims.in));
}
constexpr int kGeluRoundings = 3;

std::vector<double> Mapped(std::vector<double> values, double (*f)(double)) {
  for (double& value : values) value = f(value);
  return values;
}

std::string GeluName(GeluForm form) {
  return form == GeluForm::kErf ? "/erf_gelu" : "/gelu";
}

OpCase ForwardGeluCase(Dims dims, DType dtype, GeluForm form, bool with_bias, CaseUse use) {
  const std::string name =
      "linear_forward/" + dims.Name(dtype) + GeluName(form) + (with_bias ? "/bias" : "");
  return {name, use, [=](OpRun& run) {
            TestTensor& x = run.Input(dtype, {dims.rows, dims.in}, 0, GeluScale(dims));
            TestTensor& w = Master(run, dims);
            TestTensor* bias = with_bias ? &run.Input(DType::kF32, {dims.out}) : nullptr;
            const auto before = [=, &x, &w] {
              return LinearForwardRef(x.Values(), w.Values(),
                                      bias ? bias->Values() : std::vector<double>(), dims.rows,
                                      dims.in, dims.out);
            };
            const Shape shape{dims.rows, dims.out};
            TestTensor& y = run.Output("y", dtype, shape, 0, dims.in, before);
            TestTensor& active = run.Output("active", dtype, shape, 0, dims.in, [=] {
              return Mapped(before(), ref::GeluOf(form).value);
            });
            run.outputs.back().roundings = kGeluRoundings;
            auto weight = std::make_shared<PackedByIsa>(w, dtype);
            run.run = [=, &x, &y, &active](const Stream& stream) -> Status {
              WEFT_ASSIGN_OR_RETURN(const PackedWeight* packed, weight->Get(stream));
              return LinearForward(stream, {.x = x.view(),
                                            .weight = packed,
                                            .bias = bias ? bias->view() : TensorView(),
                                            .y = y.view(),
                                            .active = active.view(),
                                            .gelu = form});
            };
            run.flops = dims.Flops();
            run.bytes = dims.Bytes(DTypeSize(dtype), DTypeSize(dtype), 2 * DTypeSize(dtype));
            run.compute = dtype;
          }};
}

OpCase BackwardInputGeluCase(Dims dims, DType dtype, GeluForm form, bool again, CaseUse use) {
  const std::string name =
      "linear_backward_input/" + dims.Name(dtype) + GeluName(form) + (again ? "/again" : "");
  return {name, use, [=](OpRun& run) {
            TestTensor& dy = run.Input(dtype, {dims.rows, dims.out});
            TestTensor& w = Master(run, dims);
            const Shape shape{dims.rows, dims.in};
            TestTensor& before = run.Input(dtype, shape);
            TestTensor& dx = run.Output("dx", dtype, shape, 0, dims.out, [=, &dy, &w, &before] {
              std::vector<double> gradient =
                  LinearBackwardInputRef(dy.Values(), w.Values(), {}, dims.rows, dims.in, dims.out);
              const std::vector<double> at = before.Values();
              for (size_t i = 0; i < at.size(); ++i) {
                gradient[i] *= ref::GeluOf(form).derivative(at[i]);
              }
              return gradient;
            });
            run.outputs.back().roundings = kGeluRoundings;
            LinearBackwardInputArgs args = {
                .dy = dy.view(), .dx = dx.view(), .before = before.view(), .gelu = form};
            if (again) {
              args.active = run.Output("active", dtype, shape, 0, 1,
                                       [=, &before] {
                                         return Mapped(before.Values(), ref::GeluOf(form).value);
                                       })
                                .view();
            }
            auto weight = std::make_shared<PackedByIsa>(w, dtype);
            run.run = [=](const Stream& stream) -> Status {
              LinearBackwardInputArgs with = args;
              WEFT_ASSIGN_OR_RETURN(with.weight, weight->Get(stream));
              return LinearBackwardInput(stream, with);
            };
            run.flops = dims.Flops();
            run.bytes =
                dims.Bytes((again ? 3 : 2) * DTypeSize(dtype), DTypeSize(dtype), DTypeSize(dtype));
            run.compute = dtype;
          }};
}

OpCase PackCase(Dims dims, DType dtype) {
  std::string name = "linear_pack/" + std::to_string(dims.in) + "x" + std::to_string(dims.out) +
                     "/" + std::string(DTypeName(dtype));
  return {name, CaseUse::kSpeed, [=](OpRun& run) {
            TestTensor& w = Master(run, dims);
            auto made = NewPackedWeight({}, dims.out, dims.in, dtype);
            WEFT_CHECK(made.ok(), made.status().message());
            std::shared_ptr<PackedWeight> weight = std::move(made).value();
            run.run = [=, &w](const Stream& stream) { return weight->Pack(stream, w.view()); };
            run.bytes =
                static_cast<double>(static_cast<int64_t>(w.view().Bytes()) + weight->Bytes());
          }};
}

}  // namespace

std::vector<OpCase> LinearCases() {
  std::vector<OpCase> cases;
  for (DType dtype : kFloatTypes) {
    for (Dims dims : {Dims{1, 70, 257}, Dims{3, 17, 5}, Dims{33, 64, 96}, Dims{130, 70, 257},
                      Dims{64, 300, 34}}) {
      for (bool flag : {false, true}) {
        cases.push_back(ForwardCase(dims, dtype, dtype, flag, CaseUse::kTest));
        cases.push_back(BackwardInputCase(dims, dtype, flag, CaseUse::kTest));
        cases.push_back(BackwardWeightCase(dims, dtype, true, flag, CaseUse::kTest));
      }
      cases.push_back(ForwardAddCase(dims, dtype));
    }
    cases.push_back(ForwardAddCase({301, 160, 96}, dtype));
    cases.push_back(ForwardAddCase({1030, 32, 544}, dtype));
    for (Dims dims : {Dims{33, 64, 96}, Dims{130, 70, 257}}) {
      cases.push_back(ForwardCase(dims, dtype, dtype, true, CaseUse::kTest, DType::kBF16));
      cases.push_back(BackwardInputCase(dims, dtype, false, CaseUse::kTest, DType::kBF16));
    }
    // Many blocks, with rows left over: the sizes that kernels of our own serve.
    for (bool flag : {false, true}) {
      cases.push_back(ForwardCase({301, 160, 96}, dtype, dtype, flag, CaseUse::kTest));
      cases.push_back(ForwardCase({65, 32, 64}, dtype, DType::kF32, flag, CaseUse::kTest));
      cases.push_back(ForwardCase({1030, 32, 544}, dtype, dtype, flag, CaseUse::kTest));
      cases.push_back(BackwardInputCase({77, 64, 1120}, dtype, flag, CaseUse::kTest));
      cases.push_back(BackwardWeightCase({77, 128, 64}, dtype, true, flag, CaseUse::kTest));
      cases.push_back(BackwardWeightCase({4103, 32, 160}, dtype, true, flag, CaseUse::kTest));
      cases.push_back(BackwardWeightCase({96, 48, 40}, dtype, true, flag, CaseUse::kTest));
    }
    for (GeluForm form : {GeluForm::kTanh, GeluForm::kErf}) {
      for (bool flag : {false, true}) {
        cases.push_back(ForwardGeluCase({33, 64, 96}, dtype, form, flag, CaseUse::kTest));
        cases.push_back(BackwardInputGeluCase({65, 96, 64}, dtype, form, flag, CaseUse::kTest));
      }
      // Rows that no epilogue takes.
      cases.push_back(ForwardGeluCase({13, 17, 5}, dtype, form, true, CaseUse::kTest));
      cases.push_back(BackwardInputGeluCase({13, 5, 17}, dtype, form, true, CaseUse::kTest));
    }
    if (dtype == DType::kF32) {
      // Several groups of rows, and of columns, of the longest sum.
      cases.push_back(ForwardCase({480, 512, 64}, dtype, dtype, true, CaseUse::kTest));
      cases.push_back(ForwardCase({33, 512, 2784}, dtype, dtype, true, CaseUse::kTest));
    }
    if (dtype == DType::kBF16) {
      // Results that are written past the cache, and a gradient that is summed in parts.
      cases.push_back(
          ForwardGeluCase({1030, 32, 544}, dtype, GeluForm::kTanh, true, CaseUse::kTest));
      cases.push_back(
          BackwardInputGeluCase({1030, 544, 32}, dtype, GeluForm::kErf, true, CaseUse::kTest));
      cases.push_back(
          BackwardInputGeluCase({9, 32, 4416}, dtype, GeluForm::kTanh, true, CaseUse::kTest));
      // Several groups of rows of a long sum, a sum that is cut twice, and a weight in parts.
      cases.push_back(ForwardCase({1030, 1120, 32}, dtype, dtype, true, CaseUse::kTest));
      cases.push_back(ForwardCase({2, 4160, 800}, dtype, dtype, true, CaseUse::kTest));
      for (bool flag : {false, true}) {
        cases.push_back(BackwardInputCase({33, 32, 4416}, dtype, flag, CaseUse::kTest));
      }
    }
    cases.push_back(BackwardWeightCase({40, 24, 48}, dtype, false, true, CaseUse::kTest));
    cases.push_back(ForwardCase({40, 24, 48}, dtype, DType::kF32, true, CaseUse::kTest));
    for (Dims dims :
         {Dims{2048, 384, 1152}, Dims{2048, 384, 384}, Dims{2048, 384, 1536}, Dims{2048, 1536, 384},
          Dims{2048, 384, 8192}, Dims{2048, 768, 2304}, Dims{2048, 768, 768}, Dims{2048, 768, 3072},
          Dims{2048, 3072, 768}, Dims{2048, 768, 50304}}) {
      cases.push_back(ForwardCase(dims, dtype, dtype, true, CaseUse::kSpeed));
      cases.push_back(BackwardInputCase(dims, dtype, false, CaseUse::kSpeed));
      cases.push_back(BackwardWeightCase(dims, dtype, true, true, CaseUse::kSpeed));
      cases.push_back(PackCase(dims, dtype));
    }
    cases.push_back(
        ForwardGeluCase({2048, 768, 3072}, dtype, GeluForm::kTanh, true, CaseUse::kSpeed));
    cases.push_back(
        BackwardInputGeluCase({2048, 3072, 768}, dtype, GeluForm::kTanh, true, CaseUse::kSpeed));
    if (dtype != DType::kBF16) continue;
    // GPT-2 124M and 1.5B, and a Llama of about 1B: queries, keys and values; out; up; down; head.
    for (Dims dims : {Dims{65536, 768, 2304}, Dims{65536, 768, 768}, Dims{65536, 768, 3072},
                      Dims{65536, 3072, 768}, Dims{8192, 768, 50304}, Dims{16384, 1600, 4800},
                      Dims{16384, 1600, 6400}, Dims{16384, 6400, 1600}, Dims{16384, 2048, 3072},
                      Dims{16384, 2048, 16384}, Dims{16384, 8192, 2048}, Dims{8192, 2048, 32000}}) {
      cases.push_back(ForwardCase(dims, dtype, dtype, true, CaseUse::kDeviceSpeed));
      cases.push_back(BackwardInputCase(dims, dtype, false, CaseUse::kDeviceSpeed));
      cases.push_back(BackwardWeightCase(dims, dtype, true, true, CaseUse::kDeviceSpeed));
    }
    for (int64_t width : {768, 1600}) {
      const Dims up{65536, width, 4 * width}, down{65536, 4 * width, width};
      cases.push_back(ForwardGeluCase(up, dtype, GeluForm::kTanh, true, CaseUse::kDeviceSpeed));
      cases.push_back(
          BackwardInputGeluCase(down, dtype, GeluForm::kTanh, true, CaseUse::kDeviceSpeed));
    }
  }
  return cases;
}

}  // namespace weft::kernels::testing
