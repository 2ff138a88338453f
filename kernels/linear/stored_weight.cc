#include "kernels/linear/stored_weight.h"

#include "kernels/linear/linear_check.h"
#include "kernels/linear/operand.h"
#include "kernels/linear/row_product.h"

namespace weft::kernels::cpu {
namespace {

class StoredWeight final : public CpuWeight {
 public:
  StoredWeight(int64_t out, int64_t in, DType compute, RunProduct run)
      : CpuWeight(out, in, compute), run_(run) {}

  Status Pack(const Stream& stream, const TensorView& master) override {
    WEFT_RETURN_IF_ERROR(CheckPack(stream, *this, master));
    master_ = master;
    return OkStatus();
  }

  int64_t Bytes() const override { return 0; }

  Status Forward(const LinearForwardArgs& args) const override {
    if (args.x.shape[0] == 1 && !args.accumulate) {
      MultiplyRow(args.x, master_, static_cast<const float*>(args.bias.data), args.y);
      return OkStatus();
    }
    Multiply(args.x, true, static_cast<const float*>(args.bias.data), args.y, args.accumulate);
    return OkStatus();
  }

  Status BackwardInput(const LinearBackwardInputArgs& args) const override {
    Multiply(args.dy, false, nullptr, args.dx, args.accumulate);
    return OkStatus();
  }

 private:
  void Multiply(const TensorView& a, bool transposed, const float* bias, const TensorView& c,
                bool accumulate) const {
    run_({.a = StoredAs(a, true),
          .b = StoredAs(master_, transposed),
          .m = a.shape[0],
          .k = a.shape[1],
          .n = c.shape[1],
          .bias = bias,
          .c = c,
          .accumulate = accumulate});
  }

  RunProduct run_;
  TensorView master_;
};

}  // namespace

void RunAndRound(const StoredProduct& product, RunProduct run) {
  Operand sums(product.c, DType::kF32, product.accumulate);
  StoredProduct in_f32 = product;
  in_f32.c = sums.view();
  run(in_f32);
  sums.WriteBack(product.c);
}

StoredOperand StoredAs(const TensorView& matrix, bool sum_in_rows) {
  return {.data = matrix.data,
          .dtype = matrix.dtype,
          .stride = matrix.row_stride,
          .rows = matrix.shape[0],
          .sum_in_rows = sum_in_rows};
}

std::unique_ptr<CpuWeight> NewStoredWeight(int64_t out_features, int64_t in_features, DType compute,
                                           RunProduct run) {
  return std::make_unique<StoredWeight>(out_features, in_features, compute, run);
}

}  // namespace weft::kernels::cpu
