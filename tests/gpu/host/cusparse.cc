#include "tests/gpu/host/cusparse.h"

#include <cstring>
#include <string>
#include <utility>

#include "tests/gpu/host/cusparse_fake.h"
#include "tests/gpu/host/streams.h"

// NOLINTBEGIN(readability-identifier-naming): the names are cuSPARSE's.
struct cusparseContext {
  CUstream_st* stream = nullptr;
};
struct cusparseSpMatDescr {
  int64_t rows, columns, count;
  const int32_t* offsets;
  const int32_t* indices;
  const void* values;
  int type;
};
struct cusparseDnMatDescr {
  int64_t rows, columns, leading;
  void* values;
  int type;
};
// NOLINTEND(readability-identifier-naming)

namespace weft::host_cuda {

CusparseFakeState& CusparseFake() {
  static CusparseFakeState state;
  return state;
}

int CusparseBad(std::string why) {
  CusparseFake().problem = std::move(why);
  return kCusparseInvalid;
}

const char* CusparseErrorString(int status) {
  return status == kCusparseOk ? "success" : CusparseFake().problem.c_str();
}

size_t CusparseElementBytes(int type) {
  using C = kernels::cuda::CusparseLibrary;
  if (type == C::kFloat) return 4;
  return type == C::kHalf || type == C::kBFloat16 ? 2 : 0;
}

float ReadElement(int type, const void* from, int64_t i) {
  using C = kernels::cuda::CusparseLibrary;
  if (type == C::kFloat) return static_cast<const float*>(from)[i];
  const uint16_t bits = static_cast<const uint16_t*>(from)[i];
  return type == C::kBFloat16 ? ToFloat(BFloat16{bits}) : ToFloat(Half{bits});
}

void WriteElement(int type, void* to, int64_t i, float value) {
  using C = kernels::cuda::CusparseLibrary;
  if (type == C::kFloat) {
    static_cast<float*>(to)[i] = value;
  } else {
    static_cast<uint16_t*>(to)[i] =
        type == C::kBFloat16 ? ToBFloat16(value).bits : ToHalf(value).bits;
  }
}

bool LinesAreDeviceMemory(const void* at, int64_t lines, int64_t width, int64_t leading, int type) {
  const int64_t elements = (lines - 1) * leading + width;
  return IsDeviceMemory(at, static_cast<size_t>(elements) * CusparseElementBytes(type));
}

namespace {

using C = kernels::cuda::CusparseLibrary;

int Create(C::Handle* handle) {
  *handle = new cusparseContext;
  ++CusparseFake().alive;
  return kCusparseOk;
}

int Destroy(C::Handle handle) {
  delete handle;
  --CusparseFake().alive;
  return kCusparseOk;
}

int SetStream(C::Handle handle, CUstream_st* stream) {
  handle->stream = stream;
  return kCusparseOk;
}

int CreateCsr(C::SparseMatrix* matrix, int64_t rows, int64_t columns, int64_t count, void* offsets,
              void* indices, void* values, int offset_type, int index_type, int index_base,
              int value_type) {
  if (offset_type != C::kIndex32 || index_type != C::kIndex32 || index_base != C::kFromZero) {
    return CusparseBad("other indices than of 32 bits, from 0");
  }
  const size_t element = CusparseElementBytes(value_type);
  if (rows < 1 || columns < 1 || count < 0 || element == 0) return CusparseBad("sizes or type");
  const auto elements = static_cast<size_t>(count);
  if (!IsDeviceMemory(offsets, static_cast<size_t>(rows + 1) * sizeof(int32_t)) ||
      !IsDeviceMemory(indices, elements * sizeof(int32_t)) ||
      !IsDeviceMemory(values, elements * element)) {
    return CusparseBad("a sparse matrix outside device memory");
  }
  *matrix = new cusparseSpMatDescr{rows,
                                   columns,
                                   count,
                                   static_cast<const int32_t*>(offsets),
                                   static_cast<const int32_t*>(indices),
                                   values,
                                   value_type};
  ++CusparseFake().alive;
  return kCusparseOk;
}

int DestroySparse(const cusparseSpMatDescr* matrix) {
  delete matrix;
  --CusparseFake().alive;
  return kCusparseOk;
}

int CreateDense(C::DenseMatrix* matrix, int64_t rows, int64_t columns, int64_t leading,
                void* values, int value_type, int order) {
  // The engine's rows are the library's columns, so that nothing is copied.
  if (order != C::kColumnMajor) return CusparseBad("a matrix by rows");
  if (CusparseElementBytes(value_type) == 0) return CusparseBad("a type of dense matrices");
  if (rows < 1 || columns < 1 || leading < rows) return CusparseBad("columns that overlap");
  if (!LinesAreDeviceMemory(values, columns, rows, leading, value_type)) {
    return CusparseBad("a dense matrix outside device memory");
  }
  *matrix = new cusparseDnMatDescr{rows, columns, leading, values, value_type};
  ++CusparseFake().alive;
  return kCusparseOk;
}

int DestroyDense(const cusparseDnMatDescr* matrix) {
  delete matrix;
  --CusparseFake().alive;
  return kCusparseOk;
}

int CheckProduct(C::Handle handle, int a_operation, int b_operation, const cusparseSpMatDescr& a,
                 const cusparseDnMatDescr& b, const cusparseDnMatDescr& c, int compute_type,
                 int algorithm) {
  if (handle == nullptr || handle->stream == nullptr) return CusparseBad("a handle without stream");
  if (a_operation != C::kNotTransposed)
    return CusparseBad("a transposed A has other bits each time");
  if (b_operation != C::kNotTransposed) return CusparseBad("a transposed B");
  if (algorithm != C::kCsrAlgorithm3) return CusparseBad("an algorithm with other bits each time");
  if (a.type != b.type || b.type != c.type || compute_type != C::kFloat) {
    return CusparseBad("a mixture of types");
  }
  if (a.columns != b.rows || a.rows != c.rows || b.columns != c.columns) {
    return CusparseBad("sizes that do not agree");
  }
  return kCusparseOk;
}

// Some, of a size that the matrices decide.
size_t BufferBytes(const cusparseSpMatDescr& a, const cusparseDnMatDescr& b) {
  return static_cast<size_t>(64 + 4 * (a.rows + b.columns % 7));
}

int BufferSize(C::Handle handle, int a_operation, int b_operation, const void* /*alpha*/,
               const cusparseSpMatDescr* a, const cusparseDnMatDescr* b, const void* /*beta*/,
               C::DenseMatrix c, int compute_type, int algorithm, size_t* bytes) {
  *bytes = BufferBytes(*a, *b);
  return CheckProduct(handle, a_operation, b_operation, *a, *b, *c, compute_type, algorithm);
}

std::string CheckIndices(const cusparseSpMatDescr& a) {
  if (a.offsets[0] != 0 || a.offsets[a.rows] != a.count) return "offsets of rows";
  for (int64_t row = 0; row < a.rows; ++row) {
    if (a.offsets[row] > a.offsets[row + 1]) return "offsets of rows that fall";
    for (int32_t k = a.offsets[row]; k < a.offsets[row + 1]; ++k) {
      const bool rises = k == a.offsets[row] || a.indices[k] > a.indices[k - 1];
      if (a.indices[k] < 0 || a.indices[k] >= a.columns || !rises) return "indices of columns";
    }
  }
  return "";
}

std::string Multiply(const cusparseSpMatDescr& a, const cusparseDnMatDescr& b,
                     const cusparseDnMatDescr& c, float alpha, float beta) {
  if (std::string wrong = CheckIndices(a); !wrong.empty()) return wrong;
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int64_t column = 0; column < c.columns; ++column) {
      double sum = 0;
      for (int32_t k = a.offsets[row]; k < a.offsets[row + 1]; ++k) {
        sum += static_cast<double>(ReadElement(a.type, a.values, k)) *
               ReadElement(b.type, b.values, a.indices[k] + column * b.leading);
      }
      const int64_t at = row + column * c.leading;
      const float before = beta == 0 ? 0 : beta * ReadElement(c.type, c.values, at);
      WriteElement(c.type, c.values, at, alpha * static_cast<float>(sum) + before);
    }
  }
  return "";
}

int SpMM(C::Handle handle, int a_operation, int b_operation, const void* alpha,
         const cusparseSpMatDescr* a, const cusparseDnMatDescr* b, const void* beta,
         C::DenseMatrix c, int compute_type, int algorithm, void* buffer) {
  if (const int status =
          CheckProduct(handle, a_operation, b_operation, *a, *b, *c, compute_type, algorithm);
      status != kCusparseOk) {
    return status;
  }
  const size_t bytes = BufferBytes(*a, *b);
  if (!IsDeviceMemory(buffer, bytes)) return CusparseBad("a buffer that is missing or too small");
  ++CusparseFake().calls.products;
  // The call's arguments live no longer than it.
  const std::string failed = Enqueue(
      handle->stream, [csr = *a, from = *b, to = *c, scale = *static_cast<const float*>(alpha),
                       keep = *static_cast<const float*>(beta), buffer, bytes] {
        std::memset(buffer, 0xff, bytes);
        return Multiply(csr, from, to, scale, keep);
      });
  return failed.empty() ? kCusparseOk : CusparseBad(failed);
}

}  // namespace

CusparseCalls CountCusparseCalls() {
  return CusparseFake().calls;
}

int64_t CusparseObjectsAlive() {
  return CusparseFake().alive;
}

void SetCusparsePresent(bool present) {
  CusparseFake().present = present;
}

}  // namespace weft::host_cuda

namespace weft::kernels::cuda {

Result<const CusparseLibrary*> LoadCusparse() {
  namespace host = weft::host_cuda;
  static const CusparseLibrary library = {.get_error_string = host::CusparseErrorString,
                                          .create = host::Create,
                                          .destroy = host::Destroy,
                                          .set_stream = host::SetStream,
                                          .create_csr = host::CreateCsr,
                                          .destroy_sparse = host::DestroySparse,
                                          .create_dense = host::CreateDense,
                                          .destroy_dense = host::DestroyDense,
                                          .spmm_buffer_size = host::BufferSize,
                                          .spmm = host::SpMM};
  if (!host::CusparseFake().present) return UnavailableError("loading libcusparse.so.12: not here");
  return &library;
}

}  // namespace weft::kernels::cuda
