// Products by definition, in the order of the sums, for tests: what matters is which calls are
// refused. Like launches, they are work of their stream.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <cublasLt.h>

#include "common/dtype.h"
#include "common/float8.h"
#include "tests/gpu/host/cublaslt_count.h"

// NOLINTBEGIN(readability-identifier-naming): the names are CUDA's.
struct CublasLtContext {};
// NOLINTEND(readability-identifier-naming)

namespace weft::host_cuda {
namespace {

enum Operand { kA, kB, kC, kD };
constexpr const char* kNames[] = {"A", "B", "C", "D"};
constexpr uint32_t kAccess = 16;  // Bytes that fused kernels move at a time.

thread_local std::string problem;
thread_local int64_t heuristics = 0;
thread_local int64_t gelus = 0;

cublasStatus_t Refuse(cublasStatus_t status, std::string why) {
  problem = std::move(why);
  return status;
}
cublasStatus_t Invalid(std::string why) {
  return Refuse(CUBLAS_STATUS_INVALID_VALUE, std::move(why));
}
cublasStatus_t Unsupported(std::string why) {
  return Refuse(CUBLAS_STATUS_NOT_SUPPORTED, std::move(why));
}

bool IsFp8(cudaDataType_t type) {
  return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}

size_t SizeOf(cudaDataType_t type) {
  if (IsFp8(type)) return 1;
  return type == CUDA_R_32F ? 4 : 2;
}

bool Known(cudaDataType_t type) {
  return type == CUDA_R_32F || type == CUDA_R_16F || type == CUDA_R_16BF || IsFp8(type);
}

float Read(cudaDataType_t type, const void* from, int64_t i) {
  if (type == CUDA_R_32F) return static_cast<const float*>(from)[i];
  if (IsFp8(type)) {
    const uint8_t code = static_cast<const uint8_t*>(from)[i];
    return type == CUDA_R_8F_E4M3 ? ToFloat(Float8E4M3{code}) : ToFloat(Float8E5M2{code});
  }
  const uint16_t bits = static_cast<const uint16_t*>(from)[i];
  return type == CUDA_R_16BF ? ToFloat(BFloat16{bits}) : ToFloat(Half{bits});
}

void Write(cudaDataType_t type, void* to, int64_t i, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(to)[i] = value;
  } else {
    static_cast<uint16_t*>(to)[i] =
        type == CUDA_R_16BF ? ToBFloat16(value).bits : ToHalf(value).bits;
  }
}

bool Same(const cublasLtMatrixLayoutOpaque_t& x, const cublasLtMatrixLayoutOpaque_t& y) {
  return x.type == y.type && x.rows == y.rows && x.columns == y.columns && x.stride == y.stride;
}

bool Aligned(const void* at, uint64_t bytes) {
  return reinterpret_cast<uintptr_t>(at) % bytes == 0;
}

// Where a matrix or vector lies.
struct Range {
  uintptr_t begin, end;

  Range(const void* at, size_t bytes)
      : begin(reinterpret_cast<uintptr_t>(at)), end(begin + bytes) {}
  Range(const void* at, const cublasLtMatrixLayoutOpaque_t& layout)
      : Range(at, ((layout.columns - 1) * static_cast<uint64_t>(layout.stride) + layout.rows) *
                      SizeOf(layout.type)) {}
  bool Meets(const Range& o) const { return begin < o.end && o.begin < end; }
};

bool UsesVector(cublasLtEpilogue_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
         epilogue == CUBLASLT_EPILOGUE_BGRADB;
}
bool AddsBias(cublasLtEpilogue_t epilogue) {
  return UsesVector(epilogue) && epilogue != CUBLASLT_EPILOGUE_BGRADB;
}
bool WritesAux(cublasLtEpilogue_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
bool UsesAux(cublasLtEpilogue_t epilogue) {
  return WritesAux(epilogue) || epilogue == CUBLASLT_EPILOGUE_DGELU;
}

// What the documentation says of the auxiliary matrix of GELU. Its type is D's.
cublasStatus_t CheckAux(const cublasLtMatmulDescOpaque_t& operation,
                        const cublasLtMatrixLayoutOpaque_t& d) {
  if (operation.aux == nullptr) return Invalid("the epilogue has no auxiliary matrix");
  if (operation.aux_stride % 8 != 0 || operation.aux_stride < static_cast<int64_t>(d.rows)) {
    return Invalid("the auxiliary matrix has columns that are not multiples of 8 or too short");
  }
  // The library may be less strict: here users must be ready for it.
  if (!Aligned(operation.aux, kAccess) || d.stride * SizeOf(d.type) % kAccess != 0 ||
      d.type == CUDA_R_32F) {
    return Unsupported("GELU with these alignments or types");
  }
  return CUBLAS_STATUS_SUCCESS;
}

// GELU in its tanh form, and its derivative.
double Gelu(double x) {
  return 0.5 * x * (1 + std::tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}
double GeluDerivative(double x) {
  const double tanh = std::tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + tanh) +
         0.5 * x * (1 - tanh * tanh) * 0.79788456080286535588 * (1 + 3 * 0.044715 * x * x);
}

// The same for FP8 operands (on Ada and Hopper).
cublasStatus_t CheckFp8(const cublasLtMatmulDescOpaque_t& operation,
                        const cublasLtMatrixLayoutOpaque_t& a,
                        const cublasLtMatrixLayoutOpaque_t& b,
                        const cublasLtMatrixLayoutOpaque_t& d) {
  if (a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2) return Unsupported("E5M2 times E5M2");
  if (!IsFp8(a.type) || !IsFp8(b.type) || (d.type != CUDA_R_16BF && d.type != CUDA_R_32F)) {
    return Unsupported("no FP8 kernels for these types");
  }
  if (operation.a_form != CUBLAS_OP_T || operation.b_form != CUBLAS_OP_N) {
    return Unsupported("FP8 needs A transposed and B not");
  }
  if (a.rows % kAccess != 0 || a.stride % kAccess != 0 || b.stride % kAccess != 0 ||
      d.rows % kAccess != 0 || d.stride * SizeOf(d.type) % kAccess != 0) {
    return Unsupported("FP8 needs sizes that are multiples of 16");
  }
  if (operation.epilogue == CUBLASLT_EPILOGUE_BGRADB) return Unsupported("sums of FP8");
  if (operation.epilogue == CUBLASLT_EPILOGUE_BIAS && d.type == CUDA_R_32F) {
    return Unsupported("an f32 bias with FP8");
  }
  if (UsesAux(operation.epilogue)) return Unsupported("GELU with FP8");
  return CUBLAS_STATUS_SUCCESS;
}

// What the documentation of cublasLtMatmul() and of the attributes asks for.
cublasStatus_t Check(const cublasLtMatmulDescOpaque_t& operation,
                     const cublasLtMatrixLayoutOpaque_t* const (&layouts)[4]) {
  if (operation.compute != CUBLAS_COMPUTE_32F || operation.scale != CUDA_R_32F) {
    return Unsupported("only f32 sums and factors are known");
  }
  for (int i = 0; i < 4; ++i) {
    const cublasLtMatrixLayoutOpaque_t& layout = *layouts[i];
    const std::string name = kNames[i];
    constexpr uint64_t kMost = std::numeric_limits<int32_t>::max();
    if (!Known(layout.type)) return Unsupported(name + " is of an unknown type");
    if (layout.rows == 0 || layout.columns == 0 || layout.rows > kMost || layout.columns > kMost) {
      return Invalid(name + " is empty or too large");
    }
    if (layout.stride < static_cast<int64_t>(layout.rows))
      return Invalid(name + " overlaps itself");
  }
  const auto &a = *layouts[kA], &b = *layouts[kB], &c = *layouts[kC], &d = *layouts[kD];
  const bool a_turned = operation.a_form == CUBLAS_OP_T, b_turned = operation.b_form == CUBLAS_OP_T;
  const uint64_t m = a_turned ? a.columns : a.rows, k = a_turned ? a.rows : a.columns;
  const uint64_t n = b_turned ? b.rows : b.columns, b_k = b_turned ? b.columns : b.rows;
  if (k != b_k || d.rows != m || d.columns != n || c.rows != m || c.columns != n) {
    return Invalid("the sizes of the matrices do not fit");
  }
  if (c.type != d.type) return Unsupported("C and D of different types");
  if (IsFp8(a.type) || IsFp8(b.type)) {
    if (const cublasStatus_t status = CheckFp8(operation, a, b, d);
        status != CUBLAS_STATUS_SUCCESS) {
      return status;
    }
  } else {
    if (a.type != b.type || (d.type != a.type && d.type != CUDA_R_32F)) {
      return Unsupported("no kernels for these types");
    }
    if (operation.a_scale != nullptr || operation.b_scale != nullptr) {
      return Invalid("scales of what is not FP8");
    }
  }
  if (UsesVector(operation.epilogue)) {
    if (operation.bias == nullptr) return Invalid("the epilogue has no vector");
    if (!Aligned(operation.bias, SizeOf(d.type))) return Invalid("the vector is not aligned");
    // The library may be less strict: here users must be ready for it.
    if (!Aligned(operation.bias, kAccess) || d.stride * SizeOf(d.type) % kAccess != 0) {
      return Unsupported("a fused kernel for these alignments");
    }
  }
  if (UsesAux(operation.epilogue)) {
    if (const cublasStatus_t status = CheckAux(operation, d); status != CUBLAS_STATUS_SUCCESS) {
      return status;
    }
  }
  if (operation.epilogue == CUBLASLT_EPILOGUE_BGRADB && (!b_turned || k == 1)) {
    return Unsupported("the sums of B over k need a transposed B and k > 1");
  }
  return CUBLAS_STATUS_SUCCESS;
}

// op(X) by columns, or its transpose.
std::vector<float> Load(const cublasLtMatrixLayoutOpaque_t& layout, const void* from, bool turned) {
  const auto rows = static_cast<int64_t>(layout.rows),
             columns = static_cast<int64_t>(layout.columns);
  std::vector<float> values(static_cast<size_t>(rows * columns));
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) {
      values[turned ? r * columns + c : c * rows + r] =
          Read(layout.type, from, c * layout.stride + r);
    }
  }
  return values;
}

// D = by op(A) op(B) + keep C, and what the epilogue says.
struct Input {
  const void* at;
  cublasLtMatrixLayoutOpaque_t layout;
};

void Multiply(const cublasLtMatmulDescOpaque_t& operation, float by, const Input& a, const Input& b,
              float keep, const Input& c, void* d, const cublasLtMatrixLayoutOpaque_t& d_layout) {
  const bool b_turned = operation.b_form == CUBLAS_OP_T;
  const auto m = static_cast<int64_t>(d_layout.rows), n = static_cast<int64_t>(d_layout.columns);
  const auto k = static_cast<int64_t>(b_turned ? b.layout.columns : b.layout.rows);
  const std::vector<float> left = Load(a.layout, a.at, operation.a_form == CUBLAS_OP_T);
  const std::vector<float> right = Load(b.layout, b.at, b_turned);
  std::vector<float> sums(static_cast<size_t>(m));
  const float scale = (operation.a_scale != nullptr ? *operation.a_scale : 1.0f) *
                      (operation.b_scale != nullptr ? *operation.b_scale : 1.0f);
  for (int64_t j = 0; j < n; ++j) {
    std::fill(sums.begin(), sums.end(), 0.0f);
    float vector_sum = 0;
    for (int64_t p = 0; p < k; ++p) {
      const float factor = right[j * k + p];
      vector_sum += factor;
      for (int64_t i = 0; i < m; ++i) sums[i] += left[p * m + i] * factor;
    }
    for (int64_t i = 0; i < m; ++i) {
      float value = by * scale * sums[i];
      if (keep != 0) value += keep * Read(c.layout.type, c.at, j * c.layout.stride + i);
      if (AddsBias(operation.epilogue)) value += Read(d_layout.type, operation.bias, i);
      const int64_t aux = j * operation.aux_stride + i;
      if (WritesAux(operation.epilogue)) {
        Write(d_layout.type, operation.aux, aux, value);
        value = static_cast<float>(Gelu(value));
      } else if (UsesAux(operation.epilogue)) {
        value *= static_cast<float>(GeluDerivative(Read(d_layout.type, operation.aux, aux)));
      }
      Write(d_layout.type, d, j * d_layout.stride + i, value);
    }
    if (operation.epilogue == CUBLASLT_EPILOGUE_BGRADB) {
      Write(d_layout.type, operation.bias, j, vector_sum);
    }
  }
}

}  // namespace

int64_t CublasLtHeuristics() {
  return heuristics;
}

int64_t CublasLtGelus() {
  return gelus;
}

}  // namespace weft::host_cuda

namespace host = weft::host_cuda;

const char* cublasLtGetStatusString(cublasStatus_t status) {
  static thread_local std::string text;
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      text = "CUBLAS_STATUS_INVALID_VALUE (" + host::problem + ")";
      break;
    case CUBLAS_STATUS_NOT_SUPPORTED:
      text = "CUBLAS_STATUS_NOT_SUPPORTED (" + host::problem + ")";
      break;
  }
  return text.c_str();
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new CublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t operation, cublasComputeType_t compute,
                                      cudaDataType_t scale) {
  *operation = {.compute = compute,
                .scale = scale,
                .a_form = CUBLAS_OP_N,
                .b_form = CUBLAS_OP_N,
                .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
                .bias = nullptr,
                .aux = nullptr,
                .aux_stride = 0,
                .a_scale = nullptr,
                .b_scale = nullptr,
                .fast_sums = 0};
  return CUBLAS_STATUS_SUCCESS;
}

namespace {

template <class T>
cublasStatus_t Take(T& to, const void* value, size_t bytes) {
  if (bytes != sizeof to) return host::Invalid("an attribute of another size");
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return Take(operation->a_form, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return Take(operation->b_form, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return Take(operation->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return Take(operation->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return Take(operation->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return Take(operation->aux_stride, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return Take(operation->a_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return Take(operation->b_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      return Take(operation->fast_sums, value, bytes);
  }
  return host::Invalid("an unknown attribute");
}

cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t layout, cudaDataType_t type,
                                        uint64_t rows, uint64_t columns, int64_t stride) {
  *layout = {type, rows, columns, stride};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t preference) {
  *preference = {.workspace = 0,
                 .schemes = CUBLASLT_REDUCTION_SCHEME_MASK,
                 .alignments = {256, 256, 256, 256}};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return Take(preference->workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return Take(preference->schemes, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return Take(preference->alignments[host::kA], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return Take(preference->alignments[host::kB], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return Take(preference->alignments[host::kC], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return Take(preference->alignments[host::kD], value, bytes);
  }
  return host::Invalid("an unknown attribute");
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  ++host::heuristics;
  *found = 0;
  if (handle == nullptr || wanted < 1) return host::Invalid("no handle or no room for results");
  if (const cublasStatus_t status = host::Check(*operation, {a, b, c, d});
      status != CUBLAS_STATUS_SUCCESS) {
    return status;
  }
  // Some workspace, of a size that the sum's length decides, as if sums were split.
  const size_t workspace = std::min<size_t>(preference->workspace, 100 + a->columns % 7 * 16);
  results[0] = {.algo = {.operation = *operation,
                         .layouts = {*a, *b, *c, *d},
                         .alignments = {},
                         .workspace = workspace},
                .workspaceSize = workspace,
                .state = CUBLAS_STATUS_SUCCESS};
  std::copy_n(preference->alignments, 4, results[0].algo.alignments);
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  using host::Invalid;
  using host::Range;
  if (handle == nullptr || algorithm == nullptr || stream == nullptr) {
    return Invalid("a handle, an algorithm or a stream is missing");
  }
  const cublasLtMatrixLayoutOpaque_t* const layouts[4] = {a_layout, b_layout, c_layout, d_layout};
  if (const cublasStatus_t status = host::Check(*operation, layouts);
      status != CUBLAS_STATUS_SUCCESS) {
    return status;
  }
  const cublasLtMatmulDescOpaque_t& known = algorithm->operation;
  bool same = known.a_form == operation->a_form && known.b_form == operation->b_form &&
              known.epilogue == operation->epilogue && known.fast_sums == operation->fast_sums &&
              known.aux_stride == operation->aux_stride;
  for (int i = 0; i < 4; ++i) same = same && host::Same(*layouts[i], algorithm->layouts[i]);
  if (!same) return Invalid("the algorithm was found for another product");
  if (workspace_bytes < algorithm->workspace) return Invalid("the workspace is too small");
  if (!host::Aligned(workspace, 256)) return Invalid("the workspace is not aligned");
  const float by = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  const void* const operands[4] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) {
    if (i == host::kC && keep == 0) continue;
    if (operands[i] == nullptr) return Invalid(std::string(host::kNames[i]) + " is missing");
    if (host::IsFp8(a_layout->type) && !host::Aligned(operands[i], host::kAccess)) {
      return host::Unsupported("FP8 needs matrices at multiples of 16 bytes");
    }
    if (!host::Aligned(operands[i], algorithm->alignments[i])) {
      return Invalid(std::string(host::kNames[i]) +
                     " is less aligned than the algorithm was chosen for");
    }
  }
  // Not in the documentation: what a Hopper refuses.
  for (const float* scale : {operation->a_scale, operation->b_scale}) {
    if (!host::Aligned(scale, host::kAccess)) {
      return host::Unsupported("FP8 needs scales at multiples of 16 bytes");
    }
  }
  const Range result(d, *d_layout), space(workspace, workspace_bytes);
  if (result.Meets(Range(a, *a_layout)) || result.Meets(Range(b, *b_layout))) {
    return Invalid("D overlaps A or B");
  }
  const bool in_place = c == d && host::Same(*c_layout, *d_layout);
  if (keep != 0 && !in_place && result.Meets(Range(c, *c_layout))) {
    return Invalid("C overlaps D without being the same");
  }
  for (int i = 0; i < 4; ++i) {
    if ((i != host::kC || keep != 0) && space.Meets(Range(operands[i], *layouts[i]))) {
      return Invalid(std::string(host::kNames[i]) + " overlaps the workspace");
    }
  }
  if (host::UsesVector(operation->epilogue)) {
    const uint64_t length =
        host::AddsBias(operation->epilogue) ? d_layout->rows : d_layout->columns;
    const Range vector(operation->bias, length * host::SizeOf(d_layout->type));
    if (vector.Meets(space) || vector.Meets(result)) {
      return Invalid("the vector overlaps D or the workspace");
    }
  }
  if (host::UsesAux(operation->epilogue)) {
    ++host::gelus;
    // An algorithm is found for an alignment of the matrix, too.
    const auto alignment = [](const void* at) {
      return std::countr_zero(reinterpret_cast<uintptr_t>(at) | 256u);
    };
    if (alignment(operation->aux) < alignment(known.aux)) {
      return Invalid("the auxiliary matrix is less aligned than the algorithm was chosen for");
    }
    cublasLtMatrixLayoutOpaque_t aux_layout = *d_layout;
    aux_layout.stride = operation->aux_stride;
    const Range aux(operation->aux, aux_layout);
    if (aux.Meets(space) || aux.Meets(result) || aux.Meets(Range(a, *a_layout)) ||
        aux.Meets(Range(b, *b_layout))) {
      return Invalid("the auxiliary matrix overlaps another or the workspace");
    }
  }
  // The call's arguments live no longer than it.
  const std::string failed = host::Enqueue(
      stream, [=, to = *operation, la = *a_layout, lb = *b_layout, lc = *c_layout, ld = *d_layout] {
        std::memset(workspace, 0xff, workspace_bytes);
        host::Multiply(to, by, {a, la}, {b, lb}, keep, {c, lc}, d, ld);
        return std::string();
      });
  return failed.empty() ? CUBLAS_STATUS_SUCCESS : Invalid(failed);
}
