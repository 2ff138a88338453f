#include "kernels/cuda/gemm.h"

#include <algorithm>
#include <array>
#include <bit>
#include <compare>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <string>

#include <cublasLt.h>
#include <cuda_runtime.h>

#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_map.h"
#include "kernels/elementwise/elementwise.h"

namespace weft::kernels::cuda {
namespace {

cudaDataType_t CudaType(DType dtype) {
  if (dtype == DType::kF8E4M3) return CUDA_R_8F_E4M3;
  if (dtype == DType::kF8E5M2) return CUDA_R_8F_E5M2;
  if (dtype == DType::kBF16) return CUDA_R_16BF;
  return dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_32F;
}

// The largest power of two up to 256 that divides an address.
uint32_t AlignmentOf(const void* at) {
  return 1u << std::min(std::countr_zero(reinterpret_cast<uintptr_t>(at) | 256u), 8);
}

// What a plan is made for. cuBLASLt reads matrices by columns, so that the rows of ours are its
// columns, and computes the transpose of the product, cᵀ = bᵀ aᵀ: its A is our b, its B our a.
struct PlanKey {
  struct Operand {
    DType dtype;
    uint32_t alignment;
    int64_t rows, columns, stride;
    auto operator<=>(const Operand&) const = default;
  };
  std::array<Operand, 4> operands;  // a, b, plus, c
  bool a_transposed, b_transposed, fast_sums;
  cublasLtEpilogue_t epilogue;
  uint32_t vector_alignment;
  uint32_t before_alignment;
  auto operator<=>(const PlanKey&) const = default;
};

PlanKey::Operand KeyOf(const TensorView& matrix) {
  return {matrix.dtype, AlignmentOf(matrix.data), matrix.shape[0], matrix.shape[1],
          matrix.row_stride};
}

// How to compute a product. Descriptors lie here whole, without memory of their own.
struct Plan {
  cublasLtMatmulDescOpaque_t operation;
  std::array<cublasLtMatrixLayoutOpaque_t, 4> layouts;  // As the operands of the key.
  // What cuBLASLt proposes, the best first. It may still refuse one when it is called.
  static constexpr int kMostAlgorithms = 8;
  std::array<cublasLtMatmulAlgo_t, kMostAlgorithms> algorithms;
  int count = 0, chosen = 0;
  size_t workspace = 0;  // Enough for all of them.

  bool served() const { return chosen < count; }
};

std::string Describe(const GemmArgs& args) {
  const auto name = [](const TensorView& view, bool transposed) {
    return std::string(DTypeName(view.dtype)) + " " + view.shape.ToString() +
           (transposed ? " transposed" : "");
  };
  return name(args.a, args.a_transposed) + " times " + name(args.b, args.b_transposed) + " to " +
         name(args.c, false);
}

// The first failure of calls to the library, as a Status.
Status Checked(std::string_view op, std::string_view what, const GemmArgs& args,
               std::initializer_list<cublasStatus_t> statuses) {
  for (cublasStatus_t status : statuses) {
    if (status == CUBLAS_STATUS_SUCCESS) continue;
    std::string message = std::string(op) + ": " + std::string(what) + " of " + Describe(args) +
                          ": " + cublasLtGetStatusString(status);
    return status == CUBLAS_STATUS_ALLOC_FAILED ? ExhaustedError(std::move(message))
                                                : InternalError(std::move(message));
  }
  return OkStatus();
}

template <class T>
cublasStatus_t Set(Plan& plan, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  return cublasLtMatmulDescSetAttribute(&plan.operation, attribute, &value, sizeof value);
}

template <class T>
cublasStatus_t Prefer(cublasLtMatmulPreferenceOpaque_t& preference,
                      cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  return cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value);
}

bool FusesGelu(cublasLtEpilogue_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
         epilogue == CUBLASLT_EPILOGUE_DGELU;
}

// FP8 values have scales, which lie on the device.
Status SetScales(std::string_view op, const GemmArgs& args, Plan& plan) {
  if (args.a_scale == nullptr) return OkStatus();
  const int8_t fast = args.fast_sums ? 1 : 0;
  return Checked(op, "describing the scales", args,
                 {Set(plan, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, args.b_scale),
                  Set(plan, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, args.a_scale),
                  Set(plan, CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast)});
}

}  // namespace

// The library's handle of a stream, and the plans found so far.
class GemmPlans {
 public:
  static Result<std::shared_ptr<GemmPlans>> Create(std::string_view op) {
    auto plans = std::make_shared<GemmPlans>();
    if (const cublasStatus_t status = cublasLtCreate(&plans->handle_);
        status != CUBLAS_STATUS_SUCCESS) {
      plans->handle_ = nullptr;
      return InternalError(std::string(op) +
                           ": cublasLtCreate: " + cublasLtGetStatusString(status) +
                           "; hint: is there memory left on the device?");
    }
    return Result<std::shared_ptr<GemmPlans>>(std::move(plans));
  }
  GemmPlans() = default;
  ~GemmPlans() {
    if (handle_ != nullptr) (void)cublasLtDestroy(handle_);
  }
  GemmPlans(const GemmPlans&) = delete;
  GemmPlans& operator=(const GemmPlans&) = delete;

  cublasLtHandle_t handle() const { return handle_; }

  // The plan for `args`; `vector` is what the epilogue reads or writes. Only its alignment counts,
  // as that of `before` does.
  Result<Plan*> Get(const Stream& stream, std::string_view op, const GemmArgs& args,
                    cublasLtEpilogue_t epilogue, const void* vector) {
    const PlanKey key = {
        .operands = {KeyOf(args.a), KeyOf(args.b), KeyOf(args.plus), KeyOf(args.c)},
        .a_transposed = args.a_transposed,
        .b_transposed = args.b_transposed,
        .fast_sums = args.fast_sums,
        .epilogue = epilogue,
        .vector_alignment = AlignmentOf(vector),
        .before_alignment = AlignmentOf(args.before.data)};
    if (const auto found = plans_.find(key); found != plans_.end()) return &found->second;
    Plan plan;
    WEFT_RETURN_IF_ERROR(Make(stream, op, args, key, vector, plan));
    // Sizes differ from batch to batch where sequences do.
    if (plans_.size() >= kMostPlans) plans_.clear();
    return &plans_.emplace(key, plan).first->second;
  }

 private:
  static constexpr size_t kMostPlans = 4096;

  Status Make(const Stream& stream, std::string_view op, const GemmArgs& args, const PlanKey& key,
              const void* vector, Plan& plan) {
    const auto form = [](bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
    WEFT_RETURN_IF_ERROR(
        Checked(op, "describing the product", args,
                {cublasLtMatmulDescInit(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                 Set(plan, CUBLASLT_MATMUL_DESC_TRANSA, form(args.b_transposed)),
                 Set(plan, CUBLASLT_MATMUL_DESC_TRANSB, form(args.a_transposed)),
                 Set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, key.epilogue),
                 Set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector)}));
    if (FusesGelu(key.epilogue)) {
      WEFT_RETURN_IF_ERROR(
          Checked(op, "describing GELU", args,
                  {Set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, args.before.data),
                   Set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, args.before.row_stride)}));
    }
    WEFT_RETURN_IF_ERROR(SetScales(op, args, plan));
    // As much as the library recommends for its own workspace.
    const uint64_t most = stream.cuda->limits().major >= 9 ? 32 << 20 : 4 << 20;
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasLtMatmulPreferenceOpaque_t preference;
    WEFT_RETURN_IF_ERROR(
        Checked(op, "describing the workspace", args,
                {cublasLtMatmulPreferenceInit(&preference),
                 Prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, most),
                 Prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes)}));
    constexpr std::array kAlignments = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    for (size_t i = 0; i < kAlignments.size(); ++i) {
      const PlanKey::Operand& operand = key.operands[i];
      WEFT_RETURN_IF_ERROR(
          Checked(op, "describing the matrices", args,
                  {cublasLtMatrixLayoutInit(&plan.layouts[i], CudaType(operand.dtype),
                                            static_cast<uint64_t>(operand.columns),
                                            static_cast<uint64_t>(operand.rows), operand.stride),
                   Prefer(preference, kAlignments[i], operand.alignment)}));
    }
    std::array<cublasLtMatmulHeuristicResult_t, Plan::kMostAlgorithms> found;
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle_, &plan.operation, &plan.layouts[1], &plan.layouts[0], &plan.layouts[2],
        &plan.layouts[3], &preference, Plan::kMostAlgorithms, found.data(), &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return OkStatus();
    WEFT_RETURN_IF_ERROR(Checked(op, "cublasLtMatmulAlgoGetHeuristic", args, {status}));
    for (int i = 0; i < count; ++i) {
      if (found[i].state != CUBLAS_STATUS_SUCCESS) continue;
      plan.algorithms[plan.count++] = found[i].algo;
      plan.workspace = std::max(plan.workspace, found[i].workspaceSize);
    }
    return OkStatus();
  }

  cublasLtHandle_t handle_ = nullptr;
  std::map<PlanKey, Plan> plans_;
};

namespace {

// Each row of y = bias.
template <class Bias, class T>
struct RepeatRowMap {
  const Bias* bias;
  StridedRows<T> y;

  template <int kCount>
  __device__ void Apply(int64_t row, int64_t column) const {
    float values[kCount];
    LoadFloats(bias + column, values);
    StoreFloats(y.At(row, column), values);
  }
};

Status RepeatRow(const Stream& stream, std::string_view op, const TensorView& bias,
                 const TensorView& y) {
  return WithFloatType(y.dtype, [&]<class T>() {
    const auto repeat = [&]<class Bias>() {
      return LaunchRowMap<kWide<T>>(
          stream, op, RepeatRowMap<Bias, T>{bias.As<Bias>(), RowsOf<T>(y)}, y.shape[0], y.shape[1],
          RowsAligned16(y) && Aligned16(bias.data));
    };
    return bias.dtype == y.dtype ? repeat.template operator()<T>()
                                 : repeat.template operator()<float>();
  });
}

// One call of the library. `workspace` holds as much as the plan asks for. Where the library takes
// back all that it has proposed the plan serves no more.
Status Multiply(const Stream& stream, std::string_view op, const GemmArgs& args,
                const GemmPlans& plans, Plan& plan, void* vector, void* workspace) {
  WEFT_RETURN_IF_ERROR(SetScales(op, args, plan));
  if (args.gelu != GemmGelu::kNone) {
    WEFT_RETURN_IF_ERROR(
        Checked(op, "describing GELU", args,
                {Set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, args.before.data)}));
  }
  WEFT_RETURN_IF_ERROR(Checked(op, "describing the bias", args,
                               {Set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector)}));
  cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
  while (plan.served()) {
    status = cublasLtMatmul(plans.handle(), &plan.operation, &args.alpha, args.b.data,
                            &plan.layouts[1], args.a.data, &plan.layouts[0], &args.beta,
                            args.plus.data, &plan.layouts[2], args.c.data, &plan.layouts[3],
                            &plan.algorithms[static_cast<size_t>(plan.chosen)], workspace,
                            plan.workspace, stream.cuda->handle());
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) break;
    ++plan.chosen;
  }
  return Checked(op, "cublasLtMatmul", args, {status});
}

constexpr size_t kScratchAlignment = 256;

// A placeholder for a vector in scratch memory where only its alignment counts.
const void* InScratch() {
  return reinterpret_cast<const void*>(uintptr_t{kScratchAlignment});
}

size_t RoundedUp(size_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

// What the library is to do with a product: GELU is left to it where it may.
cublasLtEpilogue_t EpilogueOf(const GemmArgs& args) {
  const bool bias = static_cast<bool>(args.bias);
  if (args.gelu == GemmGelu::kGradient) return CUBLASLT_EPILOGUE_DGELU;
  if (args.gelu == GemmGelu::kForward) {
    return bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  }
  return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

Status Plain(const Stream& stream, std::string_view op, const GemmArgs& args, GemmPlans& plans) {
  WEFT_ASSIGN_OR_RETURN(Plan * plan, plans.Get(stream, op, args, EpilogueOf(args), nullptr));
  if (plan->served()) {
    WEFT_ASSIGN_OR_RETURN(void* workspace, stream.cuda->Scratch(op, plan->workspace));
    const Status status = Multiply(stream, op, args, plans, *plan, nullptr, workspace);
    if (plan->served()) return status;
  }
  if (args.fast_sums) {
    GemmArgs exact = args;
    exact.fast_sums = false;
    return Plain(stream, op, exact, plans);
  }
  return InternalError(std::string(op) + ": cuBLASLt has no algorithm for " + Describe(args));
}

// cuBLASLt takes a bias of c's type only.
Status WithBias(const Stream& stream, std::string_view op, const GemmArgs& args, GemmPlans& plans) {
  const bool rounds = args.bias.dtype != args.c.dtype;
  WEFT_ASSIGN_OR_RETURN(Plan * plan, plans.Get(stream, op, args, EpilogueOf(args),
                                               rounds ? InScratch() : args.bias.data));
  if (plan->served()) {
    const size_t offset = RoundedUp(plan->workspace);
    const size_t bytes = rounds ? offset + args.bias.shape[0] * DTypeSize(args.c.dtype) : offset;
    WEFT_ASSIGN_OR_RETURN(void* scratch, stream.cuda->Scratch(op, bytes));
    TensorView bias = args.bias;
    if (rounds) {
      bias = TensorView(static_cast<char*>(scratch) + offset, args.c.dtype, args.bias.shape,
                        args.bias.device);
      WEFT_RETURN_IF_ERROR(Cast(stream, {.x = args.bias, .y = bias}));
    }
    const Status status = Multiply(stream, op, args, plans, *plan, bias.data, scratch);
    if (plan->served()) return status;
  }
  GemmArgs rest = args;
  rest.bias = {};
  rest.beta = 1;
  rest.plus = rest.c;
  WEFT_RETURN_IF_ERROR(RepeatRow(stream, op, args.bias, args.c));
  return Plain(stream, op, rest, plans);
}

// The library can sum with the product, but its products are slower then than both by themselves.
Status WithSums(const Stream& stream, std::string_view op, const GemmArgs& args, GemmPlans& plans) {
  WEFT_RETURN_IF_ERROR(WithFloatType(args.a.dtype, [&]<class T>() {
    return ColumnSums<T>(stream, op, args.a, args.add_a_sums, args.a_sums.As<float>());
  }));
  GemmArgs rest = args;
  rest.a_sums = {};
  return Plain(stream, op, rest, plans);
}

// Whether the library computes GELU with the product.
Result<bool> ServesGelu(const Stream& stream, std::string_view op, const GemmArgs& args,
                        GemmPlans& plans) {
  constexpr int kHopper = 9;
  constexpr int64_t kColumns = 8;  // What rows of `before` must be multiples of.
  if (args.gelu_form != GeluForm::kTanh || stream.cuda->limits().major < kHopper ||
      args.before.row_stride % kColumns != 0) {
    return false;
  }
  const bool rounds = args.bias.dtype != args.c.dtype;
  const void* vector = !args.bias ? nullptr : rounds ? InScratch() : args.bias.data;
  WEFT_ASSIGN_OR_RETURN(const Plan* plan, plans.Get(stream, op, args, EpilogueOf(args), vector));
  return plan->served();
}

Status Product(const Stream& stream, std::string_view op, const GemmArgs& args, GemmPlans& plans) {
  return args.bias ? WithBias(stream, op, args, plans) : Plain(stream, op, args, plans);
}

Status WithGelu(const Stream& stream, std::string_view op, const GemmArgs& args, GemmPlans& plans) {
  WEFT_ASSIGN_OR_RETURN(const bool fused, ServesGelu(stream, op, args, plans));
  const bool forward = args.gelu == GemmGelu::kForward;
  if (fused) {
    WEFT_RETURN_IF_ERROR(Product(stream, op, args, plans));
    if (forward || !args.again) return OkStatus();
    return GeluForward(stream, {args.before, args.again, args.gelu_form});
  }
  GemmArgs rest = args;
  rest.gelu = GemmGelu::kNone;
  rest.before = {};
  if (forward) rest.c = rest.plus = args.before;
  WEFT_RETURN_IF_ERROR(Product(stream, op, rest, plans));
  if (forward) return GeluForward(stream, {args.before, args.c, args.gelu_form});
  return GeluBackward(stream, {args.c, args.before, args.c, args.again, args.gelu_form});
}

}  // namespace

Status Gemm(const Stream& stream, std::string_view op, const GemmArgs& args) {
  for (const TensorView* matrix : {&args.a, &args.b, &args.c}) {
    for (int64_t size : {matrix->shape[0], matrix->shape[1]}) {
      WEFT_CHECK(size > 0, "a product without elements");
      if (size > std::numeric_limits<int32_t>::max()) {
        return InvalidError(std::string(op) + ": " + Describe(args) +
                            " is more than cuBLASLt multiplies; hint: a smaller micro-batch");
      }
    }
  }
  WEFT_CHECK(!args.bias || (args.beta == 0 && !args.a_sums), "a bias and something else");
  WEFT_CHECK(args.gelu == GemmGelu::kNone || (args.beta == 0 && !args.a_sums && args.before),
             "GELU and something else");
  WEFT_CHECK(!args.a_sums || args.a_transposed, "sums of a matrix that is not transposed");
  std::shared_ptr<GemmPlans>& plans = stream.cuda->gemm_plans();
  if (plans == nullptr) {
    WEFT_ASSIGN_OR_RETURN(plans, GemmPlans::Create(op));
  }
  GemmArgs all = args;
  if (!all.plus) all.plus = all.c;
  if (all.gelu != GemmGelu::kNone) return WithGelu(stream, op, all, *plans);
  if (all.a_sums) return WithSums(stream, op, all, *plans);
  return Product(stream, op, all, *plans);
}

}  // namespace weft::kernels::cuda
