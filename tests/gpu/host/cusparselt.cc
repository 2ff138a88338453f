// A cuSPARSELt of our own: see tests/gpu/host/cusparse.h. What it compresses is the two values of
// each four, with zeros where there are fewer, and behind all of them a byte for each: its place.

#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "kernels/cuda/cusparselt_library.h"
#include "tests/gpu/host/cusparse_fake.h"
#include "tests/gpu/host/streams.h"

namespace weft::host_cuda {
namespace {

using C = kernels::cuda::CusparseLibrary;
using Lt = kernels::cuda::CusparseLtLibrary;
using Opaque = Lt::Opaque;

// What an Opaque holds from when it is described until it is destroyed.
enum class Kind : uint32_t { kNone, kHandle = 0x5eed0001, kMatrix, kProduct, kSelection, kPlan };

struct Matrix {
  int64_t rows, columns, leading;
  int type, order;
  bool structured;

  int64_t Lines() const { return order == C::kRowMajor ? rows : columns; }
  int64_t Width() const { return order == C::kRowMajor ? columns : rows; }
  int64_t At(int64_t row, int64_t column) const {
    return order == C::kRowMajor ? row * leading + column : row + column * leading;
  }
};

struct Held {
  Kind kind;
  Matrix matrix;        // Of a matrix.
  const Opaque* of[3];  // Of a product, its matrices; of others, the product.
  Matrix a, b, c;       // Of a plan.
};
static_assert(sizeof(Held) <= sizeof(Opaque));

Held* In(Opaque* opaque) {
  return reinterpret_cast<Held*>(opaque->data);
}
const Held* In(const Opaque* opaque) {
  return reinterpret_cast<const Held*>(opaque->data);
}
bool Is(const Opaque* opaque, Kind kind) {
  return opaque != nullptr && In(opaque)->kind == kind;
}

Held& Begin(Opaque* opaque, Kind kind) {
  Held* const held = new (opaque->data) Held{};
  held->kind = kind;
  ++CusparseFake().alive;
  return *held;
}

int End(const Opaque* opaque, Kind kind) {
  if (!Is(opaque, kind)) return CusparseBad("destroyed twice, or something else");
  In(const_cast<Opaque*>(opaque))->kind = Kind::kNone;
  --CusparseFake().alive;
  return kCusparseOk;
}

int GetProperty(int property, int* value) {
  *value = property == Lt::kMajorVersion ? 0 : 8;
  return kCusparseOk;
}

int Init(Opaque* handle) {
  Begin(handle, Kind::kHandle);
  return kCusparseOk;
}
int Destroy(const Opaque* handle) {
  return End(handle, Kind::kHandle);
}

// What the library's manual asks of matrices of 16-bit elements.
int Describe(const Opaque* handle, Opaque* to, const Matrix& matrix, uint32_t alignment) {
  if (!Is(handle, Kind::kHandle)) return CusparseBad("no handle");
  const int64_t grain = matrix.structured ? 16 : 8;
  if (matrix.type != C::kBFloat16 && matrix.type != C::kHalf) return CusparseBad("a type");
  if (matrix.rows < 1 || matrix.columns < 1 || matrix.rows % grain != 0 ||
      matrix.columns % grain != 0) {
    return CusparseBad("sizes that are no multiples of " + std::to_string(grain));
  }
  if (matrix.leading < matrix.Width() || matrix.leading % 8 != 0 || alignment != 16) {
    return CusparseBad("lines that overlap or are not aligned to 16 bytes");
  }
  Begin(to, Kind::kMatrix).matrix = matrix;
  return kCusparseOk;
}

int DenseInit(const Opaque* handle, Opaque* matrix, int64_t rows, int64_t columns, int64_t leading,
              uint32_t alignment, int type, int order) {
  return Describe(handle, matrix, {rows, columns, leading, type, order, false}, alignment);
}

int StructuredInit(const Opaque* handle, Opaque* matrix, int64_t rows, int64_t columns,
                   int64_t leading, uint32_t alignment, int type, int order, int sparsity) {
  if (sparsity != Lt::kHalf || order != C::kRowMajor) return CusparseBad("another sparsity");
  return Describe(handle, matrix, {rows, columns, leading, type, order, true}, alignment);
}

int MatrixDestroy(const Opaque* matrix) {
  return End(matrix, Kind::kMatrix);
}

int ProductInit(const Opaque* handle, Opaque* product, int a_operation, int b_operation,
                const Opaque* a, const Opaque* b, const Opaque* c, const Opaque* d,
                int compute_type) {
  if (!Is(handle, Kind::kHandle) || !Is(a, Kind::kMatrix) || !Is(b, Kind::kMatrix) ||
      !Is(c, Kind::kMatrix) || c != d) {
    return CusparseBad("no handle, or no matrices");
  }
  if (a_operation != C::kNotTransposed || b_operation != C::kTransposed ||
      compute_type != Lt::kFloatSums) {
    return CusparseBad("another product");
  }
  const Matrix &ma = In(a)->matrix, &mb = In(b)->matrix, &mc = In(c)->matrix;
  if (!ma.structured || mb.structured || mc.structured || ma.type != mb.type ||
      ma.type != mc.type) {
    return CusparseBad("a dense A, or a mixture of types");
  }
  // B is transposed.
  if (ma.columns != mb.columns || ma.rows != mc.rows || mb.rows != mc.columns) {
    return CusparseBad("sizes that do not agree");
  }
  Held* const held = new (product->data) Held{};  // Has no function that destroys it.
  held->kind = Kind::kProduct;
  held->of[0] = a;
  held->of[1] = b;
  held->of[2] = c;
  return kCusparseOk;
}

int SelectionInit(const Opaque* handle, Opaque* selection, const Opaque* product, int algorithm) {
  if (!Is(handle, Kind::kHandle) || !Is(product, Kind::kProduct) ||
      algorithm != Lt::kDefaultAlgorithm) {
    return CusparseBad("a selection of no product");
  }
  Begin(selection, Kind::kSelection).of[0] = product;
  return kCusparseOk;
}
int SelectionDestroy(const Opaque* selection) {
  return End(selection, Kind::kSelection);
}

int PlanInit(const Opaque* handle, Opaque* plan, const Opaque* product, const Opaque* selection) {
  if (!Is(handle, Kind::kHandle) || !Is(product, Kind::kProduct) ||
      !Is(selection, Kind::kSelection) || In(selection)->of[0] != product) {
    return CusparseBad("a plan of no product, or of another's selection");
  }
  // It may load kernels and take memory.
  if (std::string refused = RefuseInCapture("cuSPARSELt makes a plan"); !refused.empty()) {
    return CusparseBad(std::move(refused));
  }
  for (const Opaque* matrix : In(product)->of) {
    if (!Is(matrix, Kind::kMatrix)) return CusparseBad("a matrix was destroyed before its plan");
  }
  Held& held = Begin(plan, Kind::kPlan);
  held.a = In(In(product)->of[0])->matrix;
  held.b = In(In(product)->of[1])->matrix;
  held.c = In(In(product)->of[2])->matrix;
  ++CusparseFake().calls.plans;
  return kCusparseOk;
}
int PlanDestroy(const Opaque* plan) {
  return End(plan, Kind::kPlan);
}

// Some, of a size that the matrices decide.
size_t WorkspaceBytes(const Held& plan) {
  return static_cast<size_t>(16 * (1 + plan.c.columns % 7));
}

int GetWorkspace(const Opaque* handle, const Opaque* plan, size_t* bytes) {
  if (!Is(handle, Kind::kHandle) || !Is(plan, Kind::kPlan)) return CusparseBad("no plan");
  *bytes = WorkspaceBytes(*In(plan));
  return kCusparseOk;
}

int64_t ValuesIn(const Matrix& matrix) {
  return matrix.rows * matrix.columns / 2;
}
size_t CompressedBytes(const Matrix& matrix) {
  return static_cast<size_t>(3 * ValuesIn(matrix));
}
size_t BufferBytes(const Matrix& matrix) {
  return static_cast<size_t>(8 * matrix.rows);
}

int CompressedSize(const Opaque* handle, const Opaque* matrix, size_t* bytes, size_t* buffer) {
  if (!Is(handle, Kind::kHandle) || !Is(matrix, Kind::kMatrix) || !In(matrix)->matrix.structured) {
    return CusparseBad("no structured matrix");
  }
  *bytes = CompressedBytes(In(matrix)->matrix);
  *buffer = BufferBytes(In(matrix)->matrix);
  return kCusparseOk;
}

bool IsAligned(const void* at) {
  return reinterpret_cast<uintptr_t>(at) % 16 == 0;
}

std::string CompressInto(const Matrix& matrix, const void* dense, void* compressed) {
  auto* const places = static_cast<uint8_t*>(compressed) + 2 * ValuesIn(matrix);
  int64_t next = 0;
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (int64_t four = 0; four < matrix.columns; four += 4) {
      int kept = 0;
      for (int64_t k = 0; k < 4; ++k) {
        const float value = ReadElement(matrix.type, dense, matrix.At(row, four + k));
        if (value == 0) continue;
        if (kept == 2) return "more than two of four neighbours in a row are not 0";
        WriteElement(matrix.type, compressed, next + kept, value);
        places[next + kept++] = static_cast<uint8_t>(k);
      }
      for (; kept < 2; ++kept) {
        WriteElement(matrix.type, compressed, next + kept, 0);
        places[next + kept] = 0;
      }
      next += 2;
    }
  }
  return "";
}

int Compress(const Opaque* handle, const Opaque* opaque, int is_a, int operation, const void* dense,
             void* compressed, void* buffer, CUstream_st* stream) {
  if (!Is(handle, Kind::kHandle) || !Is(opaque, Kind::kMatrix) || !In(opaque)->matrix.structured) {
    return CusparseBad("no structured matrix");
  }
  const Matrix matrix = In(opaque)->matrix;
  const size_t bytes = BufferBytes(matrix);
  if (is_a != 1 || operation != C::kNotTransposed) return CusparseBad("another operand");
  if (!LinesAreDeviceMemory(dense, matrix.Lines(), matrix.Width(), matrix.leading, matrix.type) ||
      !IsDeviceMemory(compressed, CompressedBytes(matrix)) || !IsDeviceMemory(buffer, bytes)) {
    return CusparseBad("a matrix or a buffer outside device memory");
  }
  if (!IsAligned(dense) || !IsAligned(compressed) || !IsAligned(buffer)) {
    return CusparseBad("a matrix or a buffer that is not aligned to 16 bytes");
  }
  ++CusparseFake().calls.compressed;
  const std::string failed = Enqueue(stream, [=] {
    std::memset(buffer, 0xff, bytes);
    return CompressInto(matrix, dense, compressed);
  });
  return failed.empty() ? kCusparseOk : CusparseBad(failed);
}

struct Operands {
  const void* a;
  const void* b;
  void* d;
  float alpha, beta;
};

void Multiply(const Held& plan, const Operands& o) {
  const auto* places = static_cast<const uint8_t*>(o.a) + 2 * ValuesIn(plan.a);
  const int64_t half = plan.a.columns / 2;
  for (int64_t row = 0; row < plan.c.rows; ++row) {
    for (int64_t column = 0; column < plan.c.columns; ++column) {
      double sum = 0;
      for (int64_t k = 0; k < half; ++k) {
        const int64_t value = row * half + k;
        sum += static_cast<double>(ReadElement(plan.a.type, o.a, value)) *
               ReadElement(plan.b.type, o.b, plan.b.At(column, k / 2 * 4 + places[value]));
      }
      const int64_t at = plan.c.At(row, column);
      const float before = o.beta == 0 ? 0 : o.beta * ReadElement(plan.c.type, o.d, at);
      WriteElement(plan.c.type, o.d, at, o.alpha * static_cast<float>(sum) + before);
    }
  }
}

int Matmul(const Opaque* handle, const Opaque* opaque, const void* alpha, const void* a,
           const void* b, const void* beta, const void* c, void* d, void* workspace,
           CUstream_st** streams, int32_t stream_count) {
  if (!Is(handle, Kind::kHandle) || !Is(opaque, Kind::kPlan)) return CusparseBad("no plan");
  const Held plan = *In(opaque);
  const size_t bytes = WorkspaceBytes(plan);
  if (stream_count != 1 || streams == nullptr || streams[0] == nullptr) {
    return CusparseBad("no stream");
  }
  if (c != d) return CusparseBad("C is not D");
  if (!IsDeviceMemory(a, CompressedBytes(plan.a)) || !IsDeviceMemory(workspace, bytes) ||
      !LinesAreDeviceMemory(b, plan.b.Lines(), plan.b.Width(), plan.b.leading, plan.b.type) ||
      !LinesAreDeviceMemory(d, plan.c.Lines(), plan.c.Width(), plan.c.leading, plan.c.type)) {
    return CusparseBad("a matrix or the workspace outside device memory");
  }
  if (!IsAligned(a) || !IsAligned(b) || !IsAligned(d) || !IsAligned(workspace)) {
    return CusparseBad("a matrix or the workspace that is not aligned to 16 bytes");
  }
  ++CusparseFake().calls.multiplied;
  const Operands operands = {a, b, d, *static_cast<const float*>(alpha),
                             *static_cast<const float*>(beta)};
  const std::string failed = Enqueue(streams[0], [=] {
    std::memset(workspace, 0xff, bytes);
    Multiply(plan, operands);
    return std::string();
  });
  return failed.empty() ? kCusparseOk : CusparseBad(failed);
}

}  // namespace
}  // namespace weft::host_cuda

namespace weft::kernels::cuda {

Result<const CusparseLtLibrary*> LoadCusparseLt() {
  namespace host = weft::host_cuda;
  static const CusparseLtLibrary library = {.get_property = host::GetProperty,
                                            .get_error_string = host::CusparseErrorString,
                                            .init = host::Init,
                                            .destroy = host::Destroy,
                                            .dense_init = host::DenseInit,
                                            .structured_init = host::StructuredInit,
                                            .matrix_destroy = host::MatrixDestroy,
                                            .product_init = host::ProductInit,
                                            .selection_init = host::SelectionInit,
                                            .selection_destroy = host::SelectionDestroy,
                                            .plan_init = host::PlanInit,
                                            .plan_destroy = host::PlanDestroy,
                                            .get_workspace = host::GetWorkspace,
                                            .compressed_size = host::CompressedSize,
                                            .compress = host::Compress,
                                            .matmul = host::Matmul};
  if (!host::CusparseFake().present) {
    return UnavailableError("loading libcusparseLt.so.0: not here");
  }
  return &library;
}

}  // namespace weft::kernels::cuda
