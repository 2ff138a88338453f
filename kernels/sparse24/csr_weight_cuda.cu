#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "kernels/cuda/cusparse_status.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_map.h"
#include "kernels/cuda/transfer.h"
#include "kernels/sparse24/bias_rows.h"
#include "kernels/sparse24/csr_weight.h"
#include "kernels/sparse24/sparse24_check.h"

namespace weft::kernels::cuda {
namespace {

// The one whose results are the same each time.
constexpr int kSpMMAlgorithm = CusparseLibrary::kCsrAlgorithm3;

int CusparseType(DType dtype) {
  if (dtype == DType::kBF16) return CusparseLibrary::kBFloat16;
  return dtype == DType::kF16 ? CusparseLibrary::kHalf : CusparseLibrary::kFloat;
}

// Calls fn(row, column) for the kept elements, by rows.
template <class Fn>
void ForEachKept(const std::vector<uint16_t>& mask, int64_t out, int64_t in, const Fn& fn) {
  for (int64_t row = 0; row < out; ++row) {
    const uint16_t* const blocks = &mask[static_cast<size_t>(row / 4 * (in / 4))];
    for (int64_t block = 0; block < in / 4; ++block) {
      const int bits = blocks[block] >> (4 * (row % 4)) & 15;
      for (int c = 0; c < 4; ++c) {
        if ((bits >> c & 1) != 0) fn(row, 4 * block + c);
      }
    }
  }
}

// values[i] = the element of W at places[i].
template <class From, class T>
__global__ void __launch_bounds__(kBlockThreads)
    GatherPlaces(StridedRows<const From> weight, int64_t columns, const uint32_t* places,
                 int64_t count, T* values) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int64_t place = places[i];
  values[i] = Narrow<T>(Widen(*weight.At(place / columns, place % columns)));
}

template <class T>
Status CopyIn(const Stream& stream, const std::vector<T>& from, DeviceMemory& to) {
  const size_t bytes = from.size() * sizeof(T);
  WEFT_ASSIGN_OR_RETURN(
      to, DeviceMemory::Allocate(stream.device.index, std::max<size_t>(bytes, sizeof(T))));
  return bytes > 0 ? to.CopyFrom(from.data(), bytes) : OkStatus();
}

}  // namespace

/// A handle of the library, for one stream.
class CusparseHandle {
 public:
  CusparseHandle() = default;
  ~CusparseHandle() {
    if (handle_ != nullptr) (void)library_->destroy(handle_);
  }
  CusparseHandle(const CusparseHandle&) = delete;
  CusparseHandle& operator=(const CusparseHandle&) = delete;

  /// That of the stream, made by the first call.
  static Result<const CusparseHandle*> Of(const Stream& stream, std::string_view op) {
    std::shared_ptr<CusparseHandle>& kept = stream.cuda->cusparse();
    if (kept == nullptr) {
      auto made = std::make_shared<CusparseHandle>();
      WEFT_ASSIGN_OR_RETURN(made->library_, LoadCusparse());
      const CusparseLibrary& library = *made->library_;
      WEFT_RETURN_IF_ERROR(
          CusparseStatus(library, op, "cusparseCreate", library.create(&made->handle_)));
      WEFT_RETURN_IF_ERROR(
          CusparseStatus(library, op, "cusparseSetStream",
                         library.set_stream(made->handle_, stream.cuda->handle())));
      kept = std::move(made);
    }
    return kept.get();
  }

  const CusparseLibrary& library() const { return *library_; }
  CusparseLibrary::Handle handle() const { return handle_; }

 private:
  const CusparseLibrary* library_ = nullptr;
  CusparseLibrary::Handle handle_ = nullptr;
};

namespace {

// What a product is of; destroyed with it.
struct SpMMOperands {
  explicit SpMMOperands(const CusparseLibrary& of) : library(of) {}
  ~SpMMOperands() {
    if (a != nullptr) (void)library.destroy_sparse(a);
    if (b != nullptr) (void)library.destroy_dense(b);
    if (c != nullptr) (void)library.destroy_dense(c);
  }
  SpMMOperands(const SpMMOperands&) = delete;
  SpMMOperands& operator=(const SpMMOperands&) = delete;

  // The transpose of a matrix of ours, whose rows are the library's columns.
  Status Describe(std::string_view op, const TensorView& matrix,
                  CusparseLibrary::DenseMatrix& to) const {
    const int64_t lines = matrix.shape[0], width = matrix.shape[1];
    return CusparseStatus(
        library, op, "cusparseCreateDnMat",
        library.create_dense(&to, width, lines, matrix.row_stride, matrix.data,
                             CusparseType(matrix.dtype), CusparseLibrary::kColumnMajor));
  }

  const CusparseLibrary& library;
  CusparseLibrary::SparseMatrix a = nullptr;
  CusparseLibrary::DenseMatrix b = nullptr, c = nullptr;
};

}  // namespace

Result<CsrPatterns> CsrPatterns::Of(const std::vector<uint16_t>& mask, int64_t out, int64_t in) {
  CsrPatterns patterns;
  std::vector<int64_t> of_rows(static_cast<size_t>(out + 1)),
      of_columns(static_cast<size_t>(in + 1));
  ForEachKept(mask, out, in, [&](int64_t row, int64_t column) {
    ++of_rows[static_cast<size_t>(row + 1)];
    ++of_columns[static_cast<size_t>(column + 1)];
  });
  std::partial_sum(of_rows.begin(), of_rows.end(), of_rows.begin());
  std::partial_sum(of_columns.begin(), of_columns.end(), of_columns.begin());
  const int64_t count = of_rows.back();
  if (count > std::numeric_limits<int32_t>::max()) {
    return ExhaustedError("SparseWeight: " + std::to_string(count) +
                          " kept elements are too many for CSR; hint: a lower density");
  }
  const auto begin = [count](CsrPattern& pattern, const std::vector<int64_t>& offsets) {
    pattern.row_offsets.assign(offsets.begin(), offsets.end());
    pattern.columns.resize(static_cast<size_t>(count));
    pattern.places.resize(static_cast<size_t>(count));
  };
  begin(patterns.weight, of_rows);
  begin(patterns.transpose, of_columns);
  size_t next = 0;
  ForEachKept(mask, out, in, [&](int64_t row, int64_t column) {
    const auto place = static_cast<uint32_t>(row * in + column);
    patterns.weight.columns[next] = static_cast<int32_t>(column);
    patterns.weight.places[next] = place;
    ++next;
    const auto at = static_cast<size_t>(of_columns[static_cast<size_t>(column)]++);
    patterns.transpose.columns[at] = static_cast<int32_t>(row);
    patterns.transpose.places[at] = place;
  });
  return patterns;
}

Status CsrMatrix::SetPattern(const Stream& stream, const CsrPattern& pattern, int64_t columns,
                             DType compute) {
  rows_ = static_cast<int64_t>(pattern.row_offsets.size()) - 1;
  column_count_ = columns;
  count_ = static_cast<int64_t>(pattern.columns.size());
  compute_ = compute;
  WEFT_RETURN_IF_ERROR(CopyIn(stream, pattern.row_offsets, row_offsets_));
  WEFT_RETURN_IF_ERROR(CopyIn(stream, pattern.columns, columns_));
  WEFT_RETURN_IF_ERROR(CopyIn(stream, pattern.places, places_));
  const size_t bytes = std::max<size_t>(pattern.columns.size(), 1) * DTypeSize(compute);
  WEFT_ASSIGN_OR_RETURN(values_, DeviceMemory::Allocate(stream.device.index, bytes));
  return OkStatus();
}

Status CsrMatrix::Take(const Stream& stream, const TensorView& weight) {
  const LaunchShape shape = {.grid = {CeilDiv(count_, kBlockThreads)}, .block = {kBlockThreads}};
  const auto* places = static_cast<const uint32_t*>(places_.data());
  const auto gather = [&]<class From, class T>() {
    return Launch(stream, "SparseWeight", shape, GatherPlaces<From, T>, RowsOf<const From>(weight),
                  weight.shape[1], places, count_, static_cast<T*>(values_.data()));
  };
  return WithFloatType(compute_, [&]<class T>() {
    return weight.dtype == DType::kBF16 ? gather.template operator()<BFloat16, T>()
                                        : gather.template operator()<float, T>();
  });
}

Status CsrMatrix::Multiply(const Stream& stream, std::string_view op, const TensorView& from,
                           bool add, const TensorView& to) const {
  WEFT_ASSIGN_OR_RETURN(const CusparseHandle* const kept, CusparseHandle::Of(stream, op));
  const CusparseLibrary& library = kept->library();
  SpMMOperands operands(library);
  WEFT_RETURN_IF_ERROR(
      CusparseStatus(library, op, "cusparseCreateCsr",
                     library.create_csr(&operands.a, rows_, column_count_, count_,
                                        row_offsets_.data(), columns_.data(), values_.data(),
                                        CusparseLibrary::kIndex32, CusparseLibrary::kIndex32,
                                        CusparseLibrary::kFromZero, CusparseType(compute_))));
  WEFT_RETURN_IF_ERROR(operands.Describe(op, from, operands.b));
  WEFT_RETURN_IF_ERROR(operands.Describe(op, to, operands.c));
  constexpr int kAsIs = CusparseLibrary::kNotTransposed, kSums = CusparseLibrary::kFloat;
  const float one = 1, beta = add ? 1.0f : 0.0f;
  size_t bytes = 0;
  WEFT_RETURN_IF_ERROR(CusparseStatus(
      library, op, "cusparseSpMM_bufferSize",
      library.spmm_buffer_size(kept->handle(), kAsIs, kAsIs, &one, operands.a, operands.b, &beta,
                               operands.c, kSums, kSpMMAlgorithm, &bytes)));
  WEFT_ASSIGN_OR_RETURN(void* const buffer, stream.cuda->Scratch(op, bytes));
  return CusparseStatus(library, op, "cusparseSpMM",
                        library.spmm(kept->handle(), kAsIs, kAsIs, &one, operands.a, operands.b,
                                     &beta, operands.c, kSums, kSpMMAlgorithm, buffer));
}

Status CsrWeight::SetMask(const Stream& stream, const TensorView& mask) {
  WEFT_RETURN_IF_ERROR(CheckSparseMask(stream, *this, mask));
  has_mask_ = packed_ = false;
  std::vector<uint16_t> bits(static_cast<size_t>(mask.shape.Elements()));
  WEFT_RETURN_IF_ERROR(CopyToHost(stream, bits.data(), mask.data, mask.Bytes()));
  WEFT_ASSIGN_OR_RETURN(const CsrPatterns patterns,
                        CsrPatterns::Of(bits, out_features(), in_features()));
  WEFT_RETURN_IF_ERROR(weight_.SetPattern(stream, patterns.weight, in_features(), compute()));
  WEFT_RETURN_IF_ERROR(
      transpose_.SetPattern(stream, patterns.transpose, out_features(), compute()));
  has_mask_ = true;
  return OkStatus();
}

Status CsrWeight::Pack(const Stream& stream, const TensorView& weight) {
  WEFT_RETURN_IF_ERROR(CheckSparsePack(stream, *this, weight));
  if (!has_mask_) return InvalidError("SparseWeight: Pack before SetMask");
  WEFT_RETURN_IF_ERROR(weight_.Take(stream, weight));
  WEFT_RETURN_IF_ERROR(transpose_.Take(stream, weight));
  packed_ = true;
  return OkStatus();
}

Status CsrWeight::CheckPacked() const {
  return packed_ ? OkStatus() : InvalidError("the sparse weight is not packed");
}

Status CsrWeight::Forward(const Stream& stream, std::string_view op, const TensorView& x,
                          const TensorView& bias, const TensorView& y) const {
  WEFT_RETURN_IF_ERROR(CheckPacked());
  if (x.shape[0] == 0) return OkStatus();
  if (bias) WEFT_RETURN_IF_ERROR(FillWithBias(stream, op, bias, y));
  return weight_.Multiply(stream, op, x, static_cast<bool>(bias), y);
}

Status CsrWeight::BackwardInput(const Stream& stream, std::string_view op, const TensorView& dy,
                                const TensorView& dx) const {
  WEFT_RETURN_IF_ERROR(CheckPacked());
  return dy.shape[0] > 0 ? transpose_.Multiply(stream, op, dy, false, dx) : OkStatus();
}

}  // namespace weft::kernels::cuda
