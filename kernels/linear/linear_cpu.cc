#include <algorithm>
#include <utility>

#include "kernels/cpu/parallel.h"
#include "kernels/linear/cpu_weight.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_check.h"
#include "kernels/linear/linear_simd.h"
#include "kernels/linear/matmul.h"
#include "kernels/linear/operand.h"
#include "kernels/linear/row_product.h"

namespace weft::kernels::cpu {
namespace {

// Columns a thread must have for the bias gradient to be split.
constexpr int64_t kBiasGrain = 64;

// Up to this size the right-hand matrix of a product is packed for it, which is faster; a larger
// one, a vocabulary's, is multiplied as it is stored, to spare the memory.
constexpr int64_t kPackedBytes = 32 << 20;

// What oneDNN multiplies. It has no products of halves, and of bf16 where there are instructions.
DType ProductType(DType compute) {
  return compute == DType::kBF16 && MatmulHasBf16() ? DType::kBF16 : DType::kF32;
}

// The right-hand matrix of a product, packed or of the product's type.
struct RightHand {
  MatmulRight matrix;
  int64_t stride = 0;  // elements between rows as they are stored; 0: packed
};

// c = a b (+ bias), or c += a b.
Status Product(const TensorView& a, const RightHand& b, const TensorView& bias, const TensorView& c,
               bool accumulate) {
  DType product_type = ProductType(a.dtype);
  Operand left(a, product_type, true);
  // A narrower result of f32 products is computed in f32 and rounded once.
  DType result_type = product_type == DType::kF32 ? DType::kF32 : c.dtype;
  Operand result(c, result_type, accumulate);
  MatmulShape shape = {.m = a.shape[0],
                       .k = a.shape[1],
                       .n = c.shape[1],
                       .input = product_type,
                       .output = result_type,
                       .a_stride = left.view().row_stride,
                       .b_stride = b.stride,
                       .c_stride = result.view().row_stride,
                       .bias = static_cast<bool>(bias),
                       .accumulate = accumulate};
  WEFT_RETURN_IF_ERROR(Matmul(shape, left.view().data, b.matrix,
                              static_cast<const float*>(bias.data), result.view().data));
  result.WriteBack(c);
  return OkStatus();
}

// Wᵀ packed as the right-hand matrix of x Wᵀ, and the stored W for that of dy W. Where oneDNN has
// no products of the compute type the packed copy is f32, and operands are widened for each call.
class OneDnnWeight final : public CpuWeight {
 public:
  OneDnnWeight(int64_t out, int64_t in, DType compute) : CpuWeight(out, in, compute) {}

  /// Room for the packed copy.
  Status Reserve() { return packed_.Reset(in_features(), out_features(), ProductType(compute())); }

  Status Pack(const Stream& stream, const TensorView& master) override {
    WEFT_RETURN_IF_ERROR(CheckPack(stream, *this, master));
    master_ = master;
    return PackMaster(packed_, 1, in_features());
  }

  int64_t Bytes() const override { return packed_.bytes(); }

  Status Forward(const LinearForwardArgs& args) const override {
    if (args.x.shape[0] == 1 && !args.accumulate && ProductType(compute()) == DType::kF32) {
      MultiplyRow(args.x, master_, static_cast<const float*>(args.bias.data), args.y);
      return OkStatus();
    }
    return Product(args.x, {.matrix = packed_.view()}, args.bias, args.y, args.accumulate);
  }

  Status BackwardInput(const LinearBackwardInputArgs& args) const override {
    const TensorView &dy = args.dy, &dx = args.dx;
    const DType type = ProductType(compute());
    if (master_.dtype == type && packed_.bytes() > kPackedBytes) {
      return Product(dy, {.matrix = {.data = master_.data}, .stride = in_features()}, {}, dx,
                     args.accumulate);
    }
    // Packed for each product: that costs no more time than to keep a second copy.
    thread_local PackedMatrix packed;
    WEFT_RETURN_IF_ERROR(packed.Reset(out_features(), in_features(), type));
    WEFT_RETURN_IF_ERROR(PackMaster(packed, in_features(), 1));
    return Product(dy, {.matrix = packed.view()}, {}, dx, args.accumulate);
  }

 private:
  Status PackMaster(PackedMatrix& packed, int64_t row_stride, int64_t column_stride) const {
    // oneDNN reads bf16 only where it multiplies it.
    Operand source(master_, MatmulHasBf16() ? master_.dtype : DType::kF32, true);
    return packed.Pack(source.view().data, source.view().dtype, row_stride, column_stride);
  }

  PackedMatrix packed_;
  TensorView master_;
};

void BiasGradient(const TensorView& dy, const TensorView& dbias, bool accumulate) {
  WithFloatType(dy.dtype, [&]<class T>() {
    const LinearLoops<T>& loops = PickLinearKernels().Of<T>();
    auto* sums = dbias.As<float>();
    ParallelFor(dy.shape[1], kBiasGrain, [&](int64_t begin, int64_t end) {
      loops.column_sums(dy.As<T>() + begin, dy.shape[0], dy.row_stride, end - begin, accumulate,
                        sums + begin);
    });
  });
}

const CpuWeight* OnCpu(const PackedWeight* weight) {
  return dynamic_cast<const CpuWeight*>(weight);
}

}  // namespace

Status LinearForward(const Stream& stream, const LinearForwardArgs& args) {
  const CpuWeight* weight = OnCpu(args.weight);
  if (weight == nullptr) return InvalidError("LinearForward: weight is missing or not on the CPU");
  WEFT_RETURN_IF_ERROR(CheckLinearForward(stream, args));
  if (args.x.shape[0] == 0) return OkStatus();
  WEFT_RETURN_IF_ERROR(weight->Forward(args));
  if (!args.active || weight->FusesGelu()) return OkStatus();
  return GeluForward(stream, {args.y, args.active, args.gelu});
}

Status LinearBackwardInput(const Stream& stream, const LinearBackwardInputArgs& args) {
  const CpuWeight* weight = OnCpu(args.weight);
  if (weight == nullptr) {
    return InvalidError("LinearBackwardInput: weight is missing or not on the CPU");
  }
  WEFT_RETURN_IF_ERROR(CheckLinearBackwardInput(stream, args));
  if (args.dy.shape[0] == 0) return OkStatus();
  WEFT_RETURN_IF_ERROR(weight->BackwardInput(args));
  if (!args.before || weight->FusesGeluGradient()) return OkStatus();
  return GeluBackward(stream, {args.dx, args.before, args.dx, args.active, args.gelu});
}

Status LinearBackwardWeight(const Stream& stream, const LinearBackwardWeightArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckLinearBackwardWeight(stream, args));
  const int64_t rows = args.x.shape[0], in = args.x.shape[1], out = args.dy.shape[1];
  if (!args.dweight) {
    if (args.dbias) BiasGradient(args.dy, args.dbias, args.accumulate);
    return OkStatus();
  }
  if (rows > 0 && AmxServes(out, in, args.x.dtype)) {
    AmxBackwardWeight(args.x, args.dy, args.dweight, args.dbias, args.accumulate);
    return OkStatus();
  }
  if (rows > 0 && F32Serves()) {
    F32BackwardWeight(args.x, args.dy, args.dweight, args.dbias, args.accumulate);
    return OkStatus();
  }
  if (args.dbias) BiasGradient(args.dy, args.dbias, args.accumulate);
  if (rows > 0 && SplitServes(out, in, args.x.dtype)) {
    SplitBackwardWeight(args.x, args.dy, args.dweight, args.accumulate);
    return OkStatus();
  }
  if (rows == 0) {
    if (!args.accumulate) {
      std::fill_n(args.dweight.As<float>(), args.dweight.shape.Elements(), 0.0f);
    }
    return OkStatus();
  }
  DType product_type = ProductType(args.x.dtype);
  Operand x(args.x, product_type, true), dy(args.dy, product_type, true);
  MatmulShape shape = {.m = out,
                       .k = rows,
                       .n = in,
                       .input = product_type,
                       .output = DType::kF32,
                       .a_stride = dy.view().row_stride,
                       .a_transposed = true,
                       .b_stride = x.view().row_stride,
                       .c_stride = in,
                       .accumulate = args.accumulate};
  return Matmul(shape, dy.view().data, {.data = x.view().data}, nullptr, args.dweight.data);
}

Result<std::unique_ptr<PackedWeight>> NewPackedWeight(Device /*device*/, int64_t out_features,
                                                      int64_t in_features, DType compute) {
  WEFT_RETURN_IF_ERROR(CheckNewPackedWeight(out_features, in_features, compute));
  if (AmxServes(out_features, in_features, compute)) {
    WEFT_ASSIGN_OR_RETURN(auto weight, NewAmxWeight(out_features, in_features));
    return std::unique_ptr<PackedWeight>(std::move(weight));
  }
  if (SplitServes(out_features, in_features, compute)) {
    return std::unique_ptr<PackedWeight>(NewSplitWeight(out_features, in_features, compute));
  }
  if (F32Serves()) {
    return std::unique_ptr<PackedWeight>(NewF32Weight(out_features, in_features, compute));
  }
  auto weight = std::make_unique<OneDnnWeight>(out_features, in_features, compute);
  WEFT_RETURN_IF_ERROR(weight->Reserve());
  return std::unique_ptr<PackedWeight>(std::move(weight));
}

}  // namespace weft::kernels::cpu
