#include <memory>
#include <string>
#include <utility>

#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/map.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_check.h"

namespace weft::kernels::cuda {
namespace {

struct Same {
  __device__ float operator()(float x) const { return x; }
};

// From one of kMatrixTypes to another type.
Status Convert(const Stream& stream, const TensorView& from, const TensorView& to) {
  const auto convert = [&]<class From>() {
    return WithFloatType(to.dtype, [&]<class To>() {
      return LaunchMap<8>(stream, "PackedWeight::Pack",
                          UnaryMap<From, To, Same>{from.As<From>(), to.As<To>(), {}},
                          from.shape.Elements(), Aligned16(from.data, to.data));
    });
  };
  return from.dtype == DType::kF32 ? convert.operator()<float>() : convert.operator()<BFloat16>();
}

// The stored matrix itself where it has the compute type, and otherwise a copy of that type:
// cuBLASLt reads a matrix and its transpose equally well.
class CudaWeight final : public PackedWeight {
 public:
  CudaWeight(int64_t out, int64_t in, DType compute) : PackedWeight(out, in, compute) {}

  Status Pack(const Stream& stream, const TensorView& master) override {
    WEFT_RETURN_IF_ERROR(CheckPack(stream, *this, master));
    if (master.dtype == compute()) {
      matrix_ = master;
      return OkStatus();
    }
    if (copy_.data() == nullptr) {
      const auto bytes = static_cast<size_t>(out_features() * in_features()) * DTypeSize(compute());
      WEFT_ASSIGN_OR_RETURN(copy_, DeviceMemory::Allocate(stream.device.index, bytes));
    }
    matrix_ = TensorView(copy_.data(), compute(), master.shape, stream.device);
    return Convert(stream, master, matrix_);
  }

  int64_t Bytes() const override { return static_cast<int64_t>(copy_.bytes()); }

  const TensorView& matrix() const { return matrix_; }

 private:
  TensorView matrix_;
  DeviceMemory copy_;
};

Result<const TensorView*> MatrixOf(std::string_view op, const PackedWeight* weight) {
  const auto* own = dynamic_cast<const CudaWeight*>(weight);
  if (own == nullptr) {
    return InvalidError(std::string(op) + ": weight is missing or not on a CUDA device");
  }
  if (!own->matrix()) return InvalidError(std::string(op) + ": weight was never packed");
  return &own->matrix();
}

}  // namespace

Status LinearForward(const Stream& stream, const LinearForwardArgs& args) {
  constexpr const char* kOp = "LinearForward";
  WEFT_ASSIGN_OR_RETURN(const TensorView* weight, MatrixOf(kOp, args.weight));
  WEFT_RETURN_IF_ERROR(CheckLinearForward(stream, args));
  if (args.x.shape[0] == 0) return OkStatus();
  GemmArgs product = {.a = args.x,
                      .b = *weight,
                      .c = args.y,
                      .b_transposed = true,
                      .beta = args.accumulate ? 1.0f : 0.0f,
                      .bias = args.bias};
  if (args.active) {
    product.gelu = GemmGelu::kForward;
    product.gelu_form = args.gelu;
    product.before = args.y;
    product.c = args.active;
  }
  return Gemm(stream, kOp, product);
}

Status LinearBackwardInput(const Stream& stream, const LinearBackwardInputArgs& args) {
  constexpr const char* kOp = "LinearBackwardInput";
  WEFT_ASSIGN_OR_RETURN(const TensorView* weight, MatrixOf(kOp, args.weight));
  WEFT_RETURN_IF_ERROR(CheckLinearBackwardInput(stream, args));
  if (args.dy.shape[0] == 0) return OkStatus();
  return Gemm(stream, kOp,
              {.a = args.dy,
               .b = *weight,
               .c = args.dx,
               .beta = args.accumulate ? 1.0f : 0.0f,
               .gelu = args.before ? GemmGelu::kGradient : GemmGelu::kNone,
               .gelu_form = args.gelu,
               .before = args.before,
               .again = args.active});
}

Status LinearBackwardWeight(const Stream& stream, const LinearBackwardWeightArgs& args) {
  constexpr const char* kOp = "LinearBackwardWeight";
  WEFT_RETURN_IF_ERROR(CheckLinearBackwardWeight(stream, args));
  if (args.x.shape[0] == 0) {
    if (args.accumulate) return OkStatus();
    if (args.dweight) WEFT_RETURN_IF_ERROR(Fill(stream, {.x = args.dweight, .value = 0}));
    return args.dbias ? Fill(stream, {.x = args.dbias, .value = 0}) : OkStatus();
  }
  if (!args.dweight) {
    if (!args.dbias) return OkStatus();
    return WithFloatType(args.dy.dtype, [&]<class T>() {
      return ColumnSums<T>(stream, kOp, args.dy, args.accumulate, args.dbias.As<float>());
    });
  }
  return Gemm(stream, kOp,
              {.a = args.dy,
               .b = args.x,
               .c = args.dweight,
               .a_transposed = true,
               .beta = args.accumulate ? 1.0f : 0.0f,
               .a_sums = args.dbias,
               .add_a_sums = args.accumulate});
}

Result<std::unique_ptr<PackedWeight>> NewPackedWeight(Device device, int64_t out_features,
                                                      int64_t in_features, DType compute) {
  WEFT_RETURN_IF_ERROR(CheckNewPackedWeight(out_features, in_features, compute));
  if (device.index < 0 || device.index >= DeviceCount()) {
    return UnavailableError("NewPackedWeight: this machine has no CUDA device " +
                            std::to_string(device.index));
  }
  return std::unique_ptr<PackedWeight>(
      std::make_unique<CudaWeight>(out_features, in_features, compute));
}

}  // namespace weft::kernels::cuda
