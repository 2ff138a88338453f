#include "kernels/sparse24/cusparselt_matrix.h"

#include <algorithm>
#include <compare>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "kernels/cuda/cusparse_library.h"
#include "kernels/cuda/cusparse_status.h"
#include "kernels/cuda/cusparselt_library.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_map.h"
#include "kernels/cuda/transfer.h"
#include "kernels/sparse24/bias_rows.h"

namespace weft::kernels::cuda {
namespace {

using Opaque = CusparseLtLibrary::Opaque;

constexpr const char* kPacking = "SparseWeight by cuSPARSELt";
constexpr uint32_t kLtAlignment = 16;

int CusparseLtType(DType dtype) {
  return dtype == DType::kBF16 ? CusparseLibrary::kBFloat16 : CusparseLibrary::kHalf;
}

template <class Number>
Number UpTo(Number count, Number grain) {
  return (count + grain - 1) / grain * grain;
}

// to [lines, rows] (+)= from [lines, columns] Aᵀ: for the library C [rows, lines] by columns is A
// times the transpose of B [lines, columns] by rows.
struct LtProductKey {
  DType dtype;
  int64_t rows, columns, lines, from_stride, to_stride;
  auto operator<=>(const LtProductKey&) const = default;
};

// How to compute it. What the library describes refers to each other, so it stays where it is.
class LtPlan {
 public:
  LtPlan(const CusparseLtLibrary& library, const Opaque& handle)
      : library_(library), handle_(handle) {}
  ~LtPlan() {
    if (has_plan_) (void)library_.plan_destroy(&plan_);
    if (has_selection_) (void)library_.selection_destroy(&selection_);
    if (has_to_) (void)library_.matrix_destroy(&to_);
    if (has_from_) (void)library_.matrix_destroy(&from_);
    if (has_a_) (void)library_.matrix_destroy(&a_);
  }
  LtPlan(const LtPlan&) = delete;
  LtPlan& operator=(const LtPlan&) = delete;

  const Opaque* plan() const { return &plan_; }
  size_t workspace() const { return workspace_; }

  Status Make(std::string_view op, const LtProductKey& key) {
    WEFT_RETURN_IF_ERROR(Describe(op, key));
    WEFT_RETURN_IF_ERROR(
        Called(op, "cusparseLtMatmulDescriptorInit",
               library_.product_init(&handle_, &product_, CusparseLibrary::kNotTransposed,
                                     CusparseLibrary::kTransposed, &a_, &from_, &to_, &to_,
                                     CusparseLtLibrary::kFloatSums)));
    WEFT_RETURN_IF_ERROR(Called(op, "cusparseLtMatmulAlgSelectionInit",
                                library_.selection_init(&handle_, &selection_, &product_,
                                                        CusparseLtLibrary::kDefaultAlgorithm)));
    has_selection_ = true;
    WEFT_RETURN_IF_ERROR(Called(op, "cusparseLtMatmulPlanInit",
                                library_.plan_init(&handle_, &plan_, &product_, &selection_)));
    has_plan_ = true;
    return Called(op, "cusparseLtMatmulGetWorkspace",
                  library_.get_workspace(&handle_, &plan_, &workspace_));
  }

 private:
  Status Called(std::string_view op, std::string_view call, int status) const {
    return CusparseStatus(library_, op, call, status);
  }

  Status Describe(std::string_view op, const LtProductKey& key) {
    const int type = CusparseLtType(key.dtype);
    WEFT_RETURN_IF_ERROR(Called(
        op, "cusparseLtStructuredDescriptorInit",
        library_.structured_init(&handle_, &a_, key.rows, key.columns, key.columns, kLtAlignment,
                                 type, CusparseLibrary::kRowMajor, CusparseLtLibrary::kHalf)));
    has_a_ = true;
    WEFT_RETURN_IF_ERROR(
        Called(op, "cusparseLtDenseDescriptorInit",
               library_.dense_init(&handle_, &from_, key.lines, key.columns, key.from_stride,
                                   kLtAlignment, type, CusparseLibrary::kRowMajor)));
    has_from_ = true;
    WEFT_RETURN_IF_ERROR(
        Called(op, "cusparseLtDenseDescriptorInit",
               library_.dense_init(&handle_, &to_, key.rows, key.lines, key.to_stride, kLtAlignment,
                                   type, CusparseLibrary::kColumnMajor)));
    has_to_ = true;
    return OkStatus();
  }

  const CusparseLtLibrary& library_;
  const Opaque& handle_;
  Opaque a_ = {}, from_ = {}, to_ = {}, product_ = {}, selection_ = {}, plan_ = {};
  bool has_a_ = false, has_from_ = false, has_to_ = false;
  bool has_selection_ = false, has_plan_ = false;
  size_t workspace_ = 0;
};

// Lines that the library takes, with what it works in, in one piece of scratch memory.
struct LtLines {
  TensorView from, to;
  void* workspace = nullptr;
};

// to = the first rows of from, and zeros.
Status CopyLines(const Stream& stream, const TensorView& from, const TensorView& to) {
  const size_t element = DTypeSize(to.dtype), width = from.shape[1] * element;
  const auto pitch = [element](const TensorView& view) {
    return static_cast<size_t>(view.row_stride) * element;
  };
  const auto rows = static_cast<size_t>(std::min(from.shape[0], to.shape[0]));
  if (const auto all = static_cast<size_t>(to.shape[0]); rows < all) {
    WEFT_RETURN_IF_ERROR(FillBytes(stream, static_cast<char*>(to.data) + rows * pitch(to), 0,
                                   (all - rows) * pitch(to)));
  }
  return CopyRowsOnDevice(stream, to.data, pitch(to), from.data, pitch(from), width, rows);
}

}  // namespace

/// A handle of the library, for one stream, and the plans made so far.
class CusparseLtHandle {
 public:
  CusparseLtHandle() = default;
  ~CusparseLtHandle() {
    plans_.clear();
    if (open_) (void)library_->destroy(&handle_);
  }
  CusparseLtHandle(const CusparseLtHandle&) = delete;
  CusparseLtHandle& operator=(const CusparseLtHandle&) = delete;

  /// That of the stream, made by the first call.
  static Result<CusparseLtHandle*> Of(const Stream& stream, std::string_view op) {
    std::shared_ptr<CusparseLtHandle>& kept = stream.cuda->cusparselt();
    if (kept == nullptr) {
      const auto loaded = LoadCusparseLt();
      if (!loaded.ok()) return UnavailableError(std::string(op) + ": " + loaded.status().message());
      auto made = std::make_shared<CusparseLtHandle>();
      made->library_ = *loaded;
      WEFT_RETURN_IF_ERROR(CusparseStatus(*made->library_, op, "cusparseLtInit",
                                          made->library_->init(&made->handle_)));
      made->open_ = true;
      kept = std::move(made);
    }
    return kept.get();
  }

  const CusparseLtLibrary& library() const { return *library_; }
  const Opaque* handle() const { return &handle_; }

  Result<const LtPlan*> PlanOf(std::string_view op, const LtProductKey& key) {
    auto found = plans_.find(key);
    if (found == plans_.end()) {
      auto made = std::make_unique<LtPlan>(*library_, handle_);
      WEFT_RETURN_IF_ERROR(made->Make(op, key));
      found = plans_.emplace(key, std::move(made)).first;
    }
    return found->second.get();
  }

 private:
  const CusparseLtLibrary* library_ = nullptr;
  Opaque handle_ = {};
  bool open_ = false;
  std::map<LtProductKey, std::unique_ptr<LtPlan>> plans_;
};

namespace {

// The descriptor of a matrix to be compressed; destroyed with it.
class LtMatrixDescriptor {
 public:
  explicit LtMatrixDescriptor(const CusparseLtHandle& handle) : handle_(handle) {}
  ~LtMatrixDescriptor() {
    if (made_) (void)handle_.library().matrix_destroy(&matrix_);
  }
  LtMatrixDescriptor(const LtMatrixDescriptor&) = delete;
  LtMatrixDescriptor& operator=(const LtMatrixDescriptor&) = delete;

  Status Make(std::string_view op, int64_t rows, int64_t columns, DType dtype) {
    const CusparseLtLibrary& library = handle_.library();
    WEFT_RETURN_IF_ERROR(CusparseStatus(
        library, op, "cusparseLtStructuredDescriptorInit",
        library.structured_init(handle_.handle(), &matrix_, rows, columns, columns, kLtAlignment,
                                CusparseLtType(dtype), CusparseLibrary::kRowMajor,
                                CusparseLtLibrary::kHalf)));
    made_ = true;
    return OkStatus();
  }
  const Opaque* get() const { return &matrix_; }

 private:
  const CusparseLtHandle& handle_;
  Opaque matrix_ = {};
  bool made_ = false;
};

}  // namespace

Status CusparseLtMatrix::Reserve(const Stream& stream, int64_t rows, int64_t columns, DType dtype) {
  if (rows == rows_ && columns == columns_ && dtype == dtype_) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(const CusparseLtHandle* const kept, CusparseLtHandle::Of(stream, kPacking));
  LtMatrixDescriptor matrix(*kept);
  WEFT_RETURN_IF_ERROR(matrix.Make(kPacking, rows, columns, dtype));
  size_t bytes = 0;
  WEFT_RETURN_IF_ERROR(CusparseStatus(
      kept->library(), kPacking, "cusparseLtSpMMACompressedSize2",
      kept->library().compressed_size(kept->handle(), matrix.get(), &bytes, &buffer_bytes_)));
  WEFT_ASSIGN_OR_RETURN(compressed_, DeviceMemory::Allocate(stream.device.index, bytes));
  rows_ = rows;
  columns_ = columns;
  dtype_ = dtype;
  return OkStatus();
}

Status CusparseLtMatrix::Compress(const Stream& stream, const void* dense, void* buffer) {
  WEFT_ASSIGN_OR_RETURN(const CusparseLtHandle* const kept, CusparseLtHandle::Of(stream, kPacking));
  LtMatrixDescriptor matrix(*kept);
  WEFT_RETURN_IF_ERROR(matrix.Make(kPacking, rows_, columns_, dtype_));
  return CusparseStatus(
      kept->library(), kPacking, "cusparseLtSpMMACompress2",
      kept->library().compress(kept->handle(), matrix.get(), /*is_a=*/1,
                               CusparseLibrary::kNotTransposed, dense, compressed_.data(), buffer,
                               stream.cuda->handle()));
}

Status CusparseLtMatrix::Multiply(const Stream& stream, std::string_view op, const TensorView& from,
                                  const TensorView& bias, const TensorView& to) const {
  WEFT_ASSIGN_OR_RETURN(CusparseLtHandle* const kept, CusparseLtHandle::Of(stream, op));
  const int64_t lines = UpTo(from.shape[0], kGrain);
  const bool direct = lines == from.shape[0] && RowsAligned16(from, to);
  const LtProductKey key = {dtype_,
                            rows_,
                            columns_,
                            lines,
                            direct ? from.row_stride : columns_,
                            direct ? to.row_stride : rows_};
  WEFT_ASSIGN_OR_RETURN(const LtPlan* const plan, kept->PlanOf(op, key));
  const size_t workspace = UpTo<size_t>(plan->workspace(), 256);
  LtLines own = {from, to};
  if (direct) {
    WEFT_ASSIGN_OR_RETURN(own.workspace, stream.cuda->Scratch(op, workspace));
  } else {
    const auto of_from = static_cast<size_t>(lines * columns_) * DTypeSize(dtype_);
    const auto of_to = static_cast<size_t>(lines * rows_) * DTypeSize(dtype_);
    WEFT_ASSIGN_OR_RETURN(own.workspace, stream.cuda->Scratch(op, workspace + of_from + of_to));
    char* const behind = static_cast<char*>(own.workspace) + workspace;
    own.from = {behind, dtype_, {lines, columns_}, stream.device};
    own.to = {behind + of_from, dtype_, {lines, rows_}, stream.device};
    WEFT_RETURN_IF_ERROR(CopyLines(stream, from, own.from));
  }
  if (bias) WEFT_RETURN_IF_ERROR(FillWithBias(stream, op, bias, own.to));
  const float one = 1, beta = bias ? 1.0f : 0.0f;
  CUstream_st* handle = stream.cuda->handle();
  WEFT_RETURN_IF_ERROR(CusparseStatus(
      kept->library(), op, "cusparseLtMatmul",
      kept->library().matmul(kept->handle(), plan->plan(), &one, compressed_.data(), own.from.data,
                             &beta, own.to.data, own.to.data, own.workspace, &handle, 1)));
  return direct ? OkStatus() : CopyLines(stream, own.to, to);
}

}  // namespace weft::kernels::cuda
