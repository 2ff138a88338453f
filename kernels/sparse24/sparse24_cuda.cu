#include <memory>
#include <string>
#include <utility>

#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/transfer.h"
#include "kernels/sparse24/csr_weight.h"
#include "kernels/sparse24/cusparselt_matrix.h"
#include "kernels/sparse24/sparse24.h"
#include "kernels/sparse24/sparse24_check.h"
#include "kernels/sparse24/sparse24_compress.h"
#include "kernels/sparse24/sparse24_hopper.h"
#include "kernels/sparse24/sparse24_product.h"
#include "kernels/sparse24/sparse24_rounded.h"

namespace weft::kernels::cuda {
namespace {

// Calls fn.operator()<T>() with bf16 or f16: the types that sparse tensor cores multiply.
template <class Fn>
decltype(auto) WithSparseType(DType dtype, Fn&& fn) {
  return dtype == DType::kBF16 ? fn.template operator()<BFloat16>()
                               : fn.template operator()<Half>();
}

template <class Fn>
decltype(auto) WithMatrixType(DType dtype, Fn&& fn) {
  return dtype == DType::kF32 ? fn.template operator()<float>()
                              : fn.template operator()<BFloat16>();
}

// Whether products read and write 16 bytes of these rows at a time.
bool Wide(const TensorView& view) {
  return RowsAligned16(view) && view.shape[1] % 8 == 0;
}

bool OnHopper(const Stream& stream) {
  return ptx::BuiltForHopper() && stream.cuda->limits().major == 9;
}

// W compressed, for y = x Wᵀ, and its transpose, for dx = dy W. W dense under its mask, in the
// compute type, for the products that are not sparse: all in f32, and those along which the mask
// does not keep two of four.
class CudaSparseWeight final : public SparseWeight {
 public:
  CudaSparseWeight(int64_t out_features, int64_t in_features, DType compute)
      : SparseWeight(out_features, in_features, compute) {}

  Status SetMask(const Stream& stream, const TensorView& mask) override {
    WEFT_RETURN_IF_ERROR(CopyMask(stream, mask));
    MaskSides found;
    if (compute() != DType::kF32) {
      WEFT_ASSIGN_OR_RETURN(const MaskProblems problems, Inspect(stream, mask.shape.Elements()));
      found = {.rows = problems.rows == 0, .columns = problems.columns == 0};
    }
    HaveMask(found);
    return OkStatus();
  }
  Status SetMask(const Stream& stream, const TensorView& mask, MaskSides known) override {
    WEFT_RETURN_IF_ERROR(CopyMask(stream, mask));
    HaveMask(known);
    return OkStatus();
  }
  MaskSides mask_sides() const override {
    return {.rows = forward_is_sparse_, .columns = backward_is_sparse_};
  }

  Status Pack(const Stream& stream, const TensorView& weight) override {
    WEFT_RETURN_IF_ERROR(CheckSparsePack(stream, *this, weight));
    if (!has_mask_) return InvalidError("SparseWeight: Pack before SetMask");
    by_library_ = stream.cuda->sparse24() == Sparse24Choice::kCusparseLt &&
                  CusparseLtMatrix::Takes(out_features(), in_features());
    if (forward_is_sparse_ || backward_is_sparse_) {
      WEFT_RETURN_IF_ERROR(by_library_ ? CompressByLibrary(stream, weight)
                                       : Compress(stream, weight));
    }
    if (!forward_is_sparse_ || !backward_is_sparse_) {
      const auto elements = static_cast<size_t>(out_features() * in_features());
      WEFT_RETURN_IF_ERROR(Reserve(stream, dense_, elements * DTypeSize(compute())));
      WEFT_RETURN_IF_ERROR(CopyMasked(stream, weight, dense(stream.device)));
    }
    packed_ = true;
    return OkStatus();
  }

  int64_t Bytes() const override {
    return static_cast<int64_t>(mask_.bytes() + forward_.bytes() + backward_.bytes() +
                                dense_.bytes() + library_forward_.bytes() +
                                library_backward_.bytes());
  }

  bool packed() const { return packed_; }
  bool forward_is_sparse() const { return forward_is_sparse_; }
  bool backward_is_sparse() const { return backward_is_sparse_; }
  /// What cuSPARSELt reads of a weight that it multiplies, instead of forward() and backward();
  /// else nullptr.
  const CusparseLtMatrix* library_forward() const {
    return by_library_ ? &library_forward_ : nullptr;
  }
  const CusparseLtMatrix* library_backward() const {
    return by_library_ ? &library_backward_ : nullptr;
  }
  template <class T>
  CompressedMatrix<T> forward() const {
    return CompressedMatrix<T>::In(forward_.data(), out_features(), in_features());
  }
  template <class T>
  CompressedMatrix<T> backward() const {
    return CompressedMatrix<T>::In(backward_.data(), in_features(), out_features());
  }
  TensorView dense(Device device) const {
    return {dense_.data(), compute(), {out_features(), in_features()}, device};
  }

 private:
  static Status Reserve(const Stream& stream, DeviceMemory& memory, size_t bytes) {
    if (memory.bytes() >= bytes) return OkStatus();
    WEFT_ASSIGN_OR_RETURN(memory, DeviceMemory::Allocate(stream.device.index, bytes));
    return OkStatus();
  }

  Status CopyMask(const Stream& stream, const TensorView& mask) {
    WEFT_RETURN_IF_ERROR(CheckSparseMask(stream, *this, mask));
    has_mask_ = packed_ = false;
    const size_t bytes = mask.Bytes();
    WEFT_RETURN_IF_ERROR(Reserve(stream, mask_, bytes));
    return CopyRowsOnDevice(stream, mask_.data(), bytes, mask.data, bytes, bytes, 1);
  }

  void HaveMask(MaskSides sides) {
    forward_is_sparse_ = sides.rows;
    backward_is_sparse_ = sides.columns;
    has_mask_ = true;
  }

  // Waits for the device.
  Result<MaskProblems> Inspect(const Stream& stream, int64_t count) const {
    WEFT_ASSIGN_OR_RETURN(MaskProblems* const found,
                          ScratchOf<MaskProblems>(stream, "SparseWeight", 1));
    WEFT_RETURN_IF_ERROR(FillBytes(stream, found, 0, sizeof *found));
    const auto most = static_cast<unsigned>(4 * stream.cuda->limits().multiprocessors);
    WEFT_RETURN_IF_ERROR(
        Launch(stream, "SparseWeight",
               {.grid = {std::min(CeilDiv(count, kBlockThreads), most)}, .block = {kBlockThreads}},
               InspectMask, static_cast<const uint16_t*>(mask_.data()), count, found));
    MaskProblems problems = {};
    WEFT_RETURN_IF_ERROR(CopyToHost(stream, &problems, found, sizeof problems));
    return problems;
  }

  Status Compress(const Stream& stream, const TensorView& weight) {
    return WithSparseType(compute(), [&]<class T>() -> Status {
      using Matrix = CompressedMatrix<T>;
      const auto bytes = static_cast<size_t>(Matrix::Bytes(out_features(), in_features()));
      if (forward_is_sparse_) WEFT_RETURN_IF_ERROR(Reserve(stream, forward_, bytes));
      if (backward_is_sparse_) WEFT_RETURN_IF_ERROR(Reserve(stream, backward_, bytes));
      return WithMatrixType(weight.dtype, [&]<class From>() {
        return Launch(stream, "SparseWeight",
                      {.grid = {CeilDiv(Matrix::Padded(in_features()), kPackTile),
                                CeilDiv(Matrix::Padded(out_features()), kPackTile)},
                       .block = {kPackThreads}},
                      CompressWeight<From, T>, RowsOf<const From>(weight), RowsAligned16(weight),
                      static_cast<const uint16_t*>(mask_.data()), out_features(), in_features(),
                      forward_is_sparse_ ? forward<T>() : Matrix{},
                      backward_is_sparse_ ? backward<T>() : Matrix{});
      });
    });
  }

  // The library compresses a matrix and its transpose that lie in scratch memory, masked.
  Status CompressByLibrary(const Stream& stream, const TensorView& weight) {
    constexpr size_t kAlignment = 256;
    const int64_t out = out_features(), in = in_features();
    const auto bytes = static_cast<size_t>(out * in) * DTypeSize(compute());
    const size_t of_dense = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    const auto compress = [&](CusparseLtMatrix& matrix, int64_t rows, int64_t columns,
                              bool transposed) -> Status {
      WEFT_RETURN_IF_ERROR(matrix.Reserve(stream, rows, columns, compute()));
      WEFT_ASSIGN_OR_RETURN(void* const memory,
                            stream.cuda->Scratch("SparseWeight", of_dense + matrix.buffer_bytes()));
      WEFT_RETURN_IF_ERROR(
          transposed ? CopyMaskedTranspose(stream, weight, memory)
                     : CopyMasked(stream, weight, {memory, compute(), {out, in}, stream.device}));
      return matrix.Compress(stream, memory, static_cast<char*>(memory) + of_dense);
    };
    if (forward_is_sparse_) WEFT_RETURN_IF_ERROR(compress(library_forward_, out, in, false));
    if (backward_is_sparse_) WEFT_RETURN_IF_ERROR(compress(library_backward_, in, out, true));
    return OkStatus();
  }

  Status CopyMaskedTranspose(const Stream& stream, const TensorView& weight, void* to) const {
    return WithSparseType(compute(), [&]<class T>() {
      return WithMatrixType(weight.dtype, [&]<class From>() {
        return Launch(
            stream, "SparseWeight",
            {.grid = {CeilDiv(in_features(), kPackTile), CeilDiv(out_features(), kPackTile)},
             .block = {kPackThreads}},
            MaskedTranspose<From, T>, RowsOf<const From>(weight), RowsAligned16(weight),
            static_cast<const uint16_t*>(mask_.data()), out_features(), in_features(),
            static_cast<T*>(to));
      });
    });
  }

  Status CopyMasked(const Stream& stream, const TensorView& weight, const TensorView& to) const {
    return WithFloatType(compute(), [&]<class T>() {
      return WithMatrixType(weight.dtype, [&]<class From>() {
        const MaskedMap<From, T> map = {RowsOf<const From>(weight), RowsOf<T>(to),
                                        static_cast<const uint16_t*>(mask_.data()),
                                        in_features() / 4};
        return LaunchRowMap<4>(stream, "SparseWeight", map, out_features(), in_features(),
                               RowsAligned16(weight, to));
      });
    });
  }

  DeviceMemory mask_, forward_, backward_, dense_;
  CusparseLtMatrix library_forward_, library_backward_;
  bool forward_is_sparse_ = false, backward_is_sparse_ = false, by_library_ = false;
  bool has_mask_ = false, packed_ = false;
};

Result<const CudaSparseWeight*> PackedOnDevice(const SparseWeight& weight) {
  const auto* own = dynamic_cast<const CudaSparseWeight*>(&weight);
  if (own == nullptr) return InvalidError("the sparse weight is one of another device");
  if (!own->packed()) return InvalidError("the sparse weight is not packed");
  return own;
}

const float* BiasOf(const TensorView& bias) {
  return bias ? bias.As<float>() : nullptr;
}

// result.Take(A fromᵀ) for `rows` rows of A and from [lines, depth], which is Wide() as are all
// matrices of the result.
template <class T, class Result>
Status MultiplyWideLines(const Stream& stream, std::string_view op, const CompressedMatrix<T>& a,
                         int64_t rows, const TensorView& from, const Result& result) {
  const int64_t lines = from.shape[0], depth = from.shape[1];
  const DepthParts whole = DepthParts::Whole(depth);
  if (OnHopper(stream)) {
    return LaunchHopperSparseProduct<false>(stream, op, a, rows, from, whole, result);
  }
  return LaunchSparseProduct(
      stream, op, a, rows, DenseLines<T, true>{RowsOf<const T>(from), lines, depth}, whole, result);
}

// to [lines, rows] = from [lines, depth] Aᵀ + bias for A [rows, depth].
template <class T>
Status MultiplyLines(const Stream& stream, std::string_view op, const CompressedMatrix<T>& a,
                     const TensorView& from, const TensorView& bias, const TensorView& to) {
  const int64_t lines = from.shape[0], depth = from.shape[1], rows = to.shape[1];
  if (Wide(from) && Wide(to)) {
    return MultiplyWideLines(
        stream, op, a, rows, from,
        RoundedTranspose<T, true>{{}, RowsOf<T>(to), BiasOf(bias), lines, rows});
  }
  // Mixtures are not worth kernels of their own.
  return LaunchSparseProduct(
      stream, op, a, rows, DenseLines<T, false>{RowsOf<const T>(from), lines, depth},
      DepthParts::Whole(depth),
      RoundedTranspose<T, false>{{}, RowsOf<T>(to), BiasOf(bias), lines, rows});
}

// Whether a sparse product takes the activation on the way out. Blocks have whole parts of a gate.
bool FusesActivation(const SparseForwardArgs& args) {
  return args.active && Wide(args.x) && Wide(args.y) && Wide(args.active) &&
         (!IsGated(args.activation) || args.active.shape[1] % (SparseBlock::kRows / 2) == 0);
}
bool FusesActivation(const SparseBackwardInputArgs& args) {
  return args.before && Wide(args.dy) && Wide(args.dx) && Wide(args.before) &&
         (!args.active || Wide(args.active)) && args.weight->in_features() % 8 == 0;
}

template <class T>
Status ForwardActivated(const Stream& stream, std::string_view op, const SparseForwardArgs& args,
                        const CompressedMatrix<T>& a) {
  const int64_t lines = args.y.shape[0], rows = args.y.shape[1];
  const StridedRows<T> y = RowsOf<T>(args.y), active = RowsOf<T>(args.active);
  if (IsGated(args.activation)) {
    return MultiplyWideLines(
        stream, op, a, rows, args.x,
        GatedTranspose<T>{y, BiasOf(args.bias), active, lines, rows / 2, args.activation});
  }
  using Result = RoundedTranspose<T, true, AndTheirActivation<T>>;
  return MultiplyWideLines(
      stream, op, a, rows, args.x,
      Result{{}, y, BiasOf(args.bias), lines, rows, {active, args.activation}});
}

template <class T>
Status BackwardActivated(const Stream& stream, std::string_view op,
                         const SparseBackwardInputArgs& args, const CompressedMatrix<T>& a) {
  const int64_t lines = args.dx.shape[0], rows = args.weight->in_features();
  const StridedRows<T> dx = RowsOf<T>(args.dx), active = RowsOf<T>(args.active);
  const StridedRows<const T> before = RowsOf<const T>(args.before);
  if (IsGated(args.activation)) {
    using Result = RoundedTranspose<T, true, IntoGateAndUp<T>>;
    return MultiplyWideLines(
        stream, op, a, rows, args.dy,
        Result{{}, dx, nullptr, lines, rows, {before, active, rows, args.activation}});
  }
  using Result = RoundedTranspose<T, true, TimesDerivative<T>>;
  return MultiplyWideLines(stream, op, a, rows, args.dy,
                           Result{{}, dx, nullptr, lines, rows, {before, active, args.activation}});
}

// The activation of y in a pass of its own.
Status Activate(const Stream& stream, const SparseForwardArgs& args) {
  if (IsGated(args.activation)) {
    const GatedColumns y = GatedColumnsOf(args.y);
    return cuda::SwiGluForward(stream, {y.gate, y.up, args.active, GateOf(args.activation)});
  }
  if (args.activation == ProductActivation::kSquaredRelu) {
    return cuda::SquaredReluForward(stream, {args.y, args.active});
  }
  return cuda::GeluForward(stream, {args.y, args.active, GeluFormOf(args.activation)});
}

// The gradient behind it, of the product that lies in the first columns of dx.
Status Differentiate(const Stream& stream, const SparseBackwardInputArgs& args) {
  if (IsGated(args.activation)) {
    const GatedColumns before = GatedColumnsOf(args.before), dx = GatedColumnsOf(args.dx);
    return cuda::SwiGluBackward(stream, {.dy = dx.gate,
                                         .gate = before.gate,
                                         .up = before.up,
                                         .dgate = dx.gate,
                                         .dup = dx.up,
                                         .y = args.active,
                                         .function = GateOf(args.activation)});
  }
  if (args.activation == ProductActivation::kSquaredRelu) {
    return cuda::SquaredReluBackward(stream, {args.dx, args.before, args.dx, args.active});
  }
  return cuda::GeluBackward(
      stream, {args.dx, args.before, args.dx, args.active, GeluFormOf(args.activation)});
}

TensorView RowsFrom(const TensorView& view, int64_t first, int64_t count) {
  TensorView part = view;
  part.data = static_cast<char*>(view.data) +
              first * view.row_stride * static_cast<int64_t>(DTypeSize(view.dtype));
  part.shape = {count, view.shape[1]};
  return part;
}

// dweight (+)= dyᵀ x of whole groups of four rows.
template <class T>
Status MultiplyGroups(const Stream& stream, const SparseBackwardWeightArgs& args, bool accumulate) {
  constexpr const char* kOp = "SparseBackwardWeight";
  using Matrix = CompressedMatrix<T>;
  const int64_t rows = args.dy.shape[0], out = args.dy.shape[1], in = args.x.shape[1];
  const bool wide = Wide(args.x) && RowsAligned16(args.dweight);
  const bool on_hopper = wide && OnHopper(stream);
  const int64_t blocks = int64_t{CeilDiv(out, SparseBlock::kRows)} *
                         CeilDiv(in, on_hopper ? HopperSparseBlock::kLines : SparseBlock::kLines);
  const DepthParts parts = DepthParts::For(rows, blocks, stream.cuda->limits().multiprocessors);
  // Sums of parts, if there are several, behind the compressed matrix.
  const auto compressed = static_cast<size_t>(Matrix::Bytes(out, rows));
  const int64_t of_part = parts.count > 1 ? out * in : 0;
  WEFT_ASSIGN_OR_RETURN(
      void* const memory,
      stream.cuda->Scratch(
          kOp, compressed + static_cast<size_t>(parts.count * of_part) * sizeof(float)));
  const Matrix transpose = Matrix::In(memory, out, rows);
  WEFT_RETURN_IF_ERROR(Launch(
      stream, kOp,
      {.grid = {CeilDiv(transpose.rows, kPackTile), CeilDiv(rows, kPackTile)},
       .block = {kPackThreads}},
      args.estimate != nullptr ? CompressTranspose<true, T> : CompressTranspose<false, T>,
      RowsOf<const T>(args.dy), RowsAligned16(args.dy), rows, out,
      args.estimate != nullptr ? MvueNumbersOf(*args.estimate, out) : MvueNumbers{}, transpose));
  const StridedRows<float> dweight = RowsOf<float>(args.dweight);
  auto* const sums = reinterpret_cast<float*>(static_cast<char*>(memory) + compressed);
  const auto result_of = [&]<bool kWide>() {
    return of_part == 0 ? AddedSums<kWide>{{}, dweight, out, in, accumulate}
                        : AddedSums<kWide>{{}, {sums, in}, out, in, false, of_part};
  };
  const auto launch = [&]<bool kWide>() {
    return LaunchSparseProduct(stream, kOp, transpose, out,
                               DenseColumns<T, kWide>{RowsOf<const T>(args.x), in, rows}, parts,
                               result_of.template operator()<kWide>());
  };
  WEFT_RETURN_IF_ERROR(
      !wide        ? launch.template operator()<false>()
      : !on_hopper ? launch.template operator()<true>()
                   : LaunchHopperSparseProduct<true>(stream, kOp, transpose, out, args.x, parts,
                                                     result_of.template operator()<true>()));
  if (of_part == 0) return OkStatus();
  const SumOfParts map = {dweight, {sums, in}, of_part, static_cast<int>(parts.count), accumulate};
  return LaunchRowMap<4>(stream, kOp, map, out, in, wide);
}

}  // namespace

Result<std::unique_ptr<SparseWeight>> NewSparseWeight(Device /*device*/, int64_t out_features,
                                                      int64_t in_features, DType compute,
                                                      MaskKind kind) {
  WEFT_RETURN_IF_ERROR(CheckSparseWeight(out_features, in_features, compute));
  if (kind == MaskKind::kUnstructured) {
    if (const auto loaded = LoadCusparse(); !loaded.ok()) {
      return UnavailableError("SparseWeight of an unstructured mask: " + loaded.status().message());
    }
    return std::unique_ptr<SparseWeight>(
        std::make_unique<CsrWeight>(out_features, in_features, compute));
  }
  return std::unique_ptr<SparseWeight>(
      std::make_unique<CudaSparseWeight>(out_features, in_features, compute));
}

Status SparseForward(const Stream& stream, const SparseForwardArgs& args) {
  constexpr const char* kOp = "SparseForward";
  WEFT_RETURN_IF_ERROR(CheckSparseForward(stream, args));
  if (const auto* csr = dynamic_cast<const CsrWeight*>(args.weight); csr != nullptr) {
    WEFT_RETURN_IF_ERROR(csr->Forward(stream, kOp, args.x, args.bias, args.y));
    return args.active ? Activate(stream, args) : OkStatus();
  }
  WEFT_ASSIGN_OR_RETURN(const CudaSparseWeight* weight, PackedOnDevice(*args.weight));
  if (args.x.shape[0] == 0) return OkStatus();
  if (!weight->forward_is_sparse()) {
    WEFT_RETURN_IF_ERROR(Gemm(stream, kOp,
                              {.a = args.x,
                               .b = weight->dense(stream.device),
                               .c = args.y,
                               .b_transposed = true,
                               .bias = args.bias}));
  } else if (const CusparseLtMatrix* matrix = weight->library_forward(); matrix != nullptr) {
    WEFT_RETURN_IF_ERROR(matrix->Multiply(stream, kOp, args.x, args.bias, args.y));
  } else if (FusesActivation(args)) {
    return WithSparseType(weight->compute(), [&]<class T>() {
      return ForwardActivated<T>(stream, kOp, args, weight->forward<T>());
    });
  } else {
    WEFT_RETURN_IF_ERROR(WithSparseType(weight->compute(), [&]<class T>() {
      return MultiplyLines(stream, kOp, weight->forward<T>(), args.x, args.bias, args.y);
    }));
  }
  return args.active ? Activate(stream, args) : OkStatus();
}

Status SparseBackwardInput(const Stream& stream, const SparseBackwardInputArgs& args) {
  constexpr const char* kOp = "SparseBackwardInput";
  WEFT_RETURN_IF_ERROR(CheckSparseBackwardInput(stream, args));
  const bool gated = args.before && IsGated(args.activation);
  const TensorView product = gated ? GatedColumnsOf(args.dx).gate : args.dx;
  if (const auto* csr = dynamic_cast<const CsrWeight*>(args.weight); csr != nullptr) {
    WEFT_RETURN_IF_ERROR(csr->BackwardInput(stream, kOp, args.dy, product));
    return args.before ? Differentiate(stream, args) : OkStatus();
  }
  WEFT_ASSIGN_OR_RETURN(const CudaSparseWeight* weight, PackedOnDevice(*args.weight));
  if (args.dy.shape[0] == 0) return OkStatus();
  if (!weight->backward_is_sparse()) {
    WEFT_RETURN_IF_ERROR(
        Gemm(stream, kOp, {.a = args.dy, .b = weight->dense(stream.device), .c = product}));
  } else if (const CusparseLtMatrix* matrix = weight->library_backward(); matrix != nullptr) {
    WEFT_RETURN_IF_ERROR(matrix->Multiply(stream, kOp, args.dy, {}, product));
  } else if (FusesActivation(args)) {
    return WithSparseType(weight->compute(), [&]<class T>() {
      return BackwardActivated<T>(stream, kOp, args, weight->backward<T>());
    });
  } else {
    WEFT_RETURN_IF_ERROR(WithSparseType(weight->compute(), [&]<class T>() {
      return MultiplyLines(stream, kOp, weight->backward<T>(), args.dy, {}, product);
    }));
  }
  return args.before ? Differentiate(stream, args) : OkStatus();
}

Status SparseBackwardWeight(const Stream& stream, const SparseBackwardWeightArgs& args) {
  constexpr const char* kOp = "SparseBackwardWeight";
  WEFT_RETURN_IF_ERROR(CheckSparseBackwardWeight(stream, args));
  const int64_t rows = args.dy.shape[0];
  if (args.dweight.shape.Elements() == 0) return OkStatus();
  const bool is_f32 = args.x.dtype == DType::kF32;
  if (is_f32 && args.estimate != nullptr) {
    return UnavailableError(
        "SparseBackwardWeight: estimates no gradient of f32 on a CUDA device; "
        "hint: Mvue() before it, or bf16");
  }
  if (rows == 0) {
    const size_t width = args.dweight.shape[1] * sizeof(float);
    for (int64_t r = 0; r < args.dweight.shape[0] && !args.accumulate; ++r) {
      const TensorView row = RowsFrom(args.dweight, r, 1);
      WEFT_RETURN_IF_ERROR(FillBytes(stream, row.data, 0, width));
    }
    return OkStatus();
  }
  // Rows behind the last whole group are dense; all are in f32, which sparse tensor cores have not.
  const int64_t grouped = is_f32 ? 0 : rows / 4 * 4;
  if (grouped < rows) {
    WEFT_RETURN_IF_ERROR(Gemm(stream, kOp,
                              {.a = RowsFrom(args.dy, grouped, rows - grouped),
                               .b = RowsFrom(args.x, grouped, rows - grouped),
                               .c = args.dweight,
                               .a_transposed = true,
                               .beta = args.accumulate ? 1.0f : 0.0f}));
  }
  if (grouped == 0) return OkStatus();
  SparseBackwardWeightArgs groups = args;
  groups.x = RowsFrom(args.x, 0, grouped);
  groups.dy = RowsFrom(args.dy, 0, grouped);
  return WithSparseType(args.x.dtype, [&]<class T>() {
    return MultiplyGroups<T>(stream, groups, args.accumulate || grouped < rows);
  });
}

Status SampledBackwardWeight(const Stream&, const SampledBackwardWeightArgs&) {
  return UnavailableError("SampledBackwardWeight: has no CUDA kernel; hint: LinearBackwardWeight");
}

}  // namespace weft::kernels::cuda
