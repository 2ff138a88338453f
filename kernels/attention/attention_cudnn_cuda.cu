#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/log.h"
#include "kernels/attention/attention_cudnn.h"
#include "kernels/attention/attention_cudnn_graph.h"
#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/scoped_device.h"
#include "kernels/cuda/vector.h"

namespace weft::kernels::cuda {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kOne = 1;
constexpr size_t kScratchAlignment = 256;

size_t RoundedUp(size_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

CudnnAttentionShape ShapeOf(const AttentionForwardArgs& args) {
  CudnnAttentionShape shape;
  shape.dtype = args.q.dtype;
  shape.causal = args.causal;
  shape.window = args.window < args.length ? args.window : 0;
  shape.sequences = args.sequence_starts.shape[0] - 1;
  shape.length = args.length;
  shape.heads = args.heads;
  shape.kv_heads = args.kv_heads;
  shape.head_dim = args.q.shape[1] / args.heads;
  shape.q_stride = args.q.row_stride;
  shape.k_stride = args.k.row_stride;
  shape.v_stride = args.v.row_stride;
  shape.out_stride = args.out.row_stride;
  return shape;
}

CudnnAttentionShape ShapeOf(const AttentionBackwardArgs& args) {
  CudnnAttentionShape shape = ShapeOf(args.forward);
  shape.dout_stride = args.dout.row_stride;
  shape.dq_stride = args.dq.row_stride;
  shape.dk_stride = args.dk.row_stride;
  shape.dv_stride = args.dv.row_stride;
  return shape;
}

// A plan and the names of its tensors.
struct AttentionPlan {
  CudnnAttentionTensors tensors;
  CudnnPlan plan;
};

}  // namespace

/// A handle of the library and what it said of shapes.
class CudnnAttention {
 public:
  CudnnAttention() = default;
  ~CudnnAttention() {
    if (handle_ != nullptr) (void)library_->destroy(handle_);
  }
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  CudnnLibrary::Handle handle() const { return handle_; }

  /// The plan of a shape; kUnavailable why there is none.
  Result<const AttentionPlan*> Get(const Stream& stream, const CudnnAttentionShape& shape,
                                   bool backward) {
    WEFT_RETURN_IF_ERROR(Open(stream));
    const auto key = std::pair(backward, shape);
    auto found = plans_.find(key);
    if (found == plans_.end()) found = plans_.emplace(key, Make(shape, backward)).first;
    if (!found->second.ok()) return found->second.status();
    return &*found->second;
  }

  /// Whether this is said for the first time.
  bool IsNew(const std::string& reason) { return reasons_.insert(reason).second; }

 private:
  Status Open(const Stream& stream) {
    if (opened_.has_value()) return *opened_;
    opened_ = [&]() -> Status {
      WEFT_ASSIGN_OR_RETURN(library_, LoadCudnn());
      WEFT_RETURN_IF_ERROR(CudnnStatus(*library_, "cudnnCreate", library_->create(&handle_)));
      return CudnnStatus(*library_, "cudnnSetStream",
                         library_->set_stream(handle_, stream.cuda->handle()));
    }();
    return *opened_;
  }

  Result<AttentionPlan> Make(const CudnnAttentionShape& shape, bool backward) const {
    WEFT_RETURN_IF_ERROR(CheckCudnnTakes(shape, backward, library_->get_version()));
    CudnnGraph graph(*library_);
    const CudnnAttentionTensors tensors =
        backward ? DescribeAttentionBackward(graph, shape) : DescribeAttentionForward(graph, shape);
    WEFT_ASSIGN_OR_RETURN(CudnnPlan plan, graph.Compile(handle_));
    return AttentionPlan{tensors, std::move(plan)};
  }

  std::optional<Status> opened_;
  const CudnnLibrary* library_ = nullptr;
  CudnnLibrary::Handle handle_ = nullptr;
  std::map<std::pair<bool, CudnnAttentionShape>, Result<AttentionPlan>> plans_;
  std::set<std::string> reasons_;
};

namespace {

// The tensors that both passes bind.
std::vector<CudnnPlan::Binding> Bindings(const CudnnAttentionTensors& tensors,
                                         const AttentionForwardArgs& args, const float& window) {
  std::vector<CudnnPlan::Binding> bindings = {{tensors.q, args.q.data},
                                              {tensors.k, args.k.data},
                                              {tensors.v, args.v.data},
                                              {tensors.out, args.out.data},
                                              {tensors.log_sum_exp, args.log_sum_exp.data},
                                              {tensors.scale, &args.scale},
                                              {tensors.least, &kMinusInfinity},
                                              {tensors.window_least, &kMinusInfinity},
                                              {tensors.window, &window}};
  std::erase_if(bindings, [](const CudnnPlan::Binding& b) { return b.tensor == 0; });
  return bindings;
}

bool AreAligned(std::initializer_list<const TensorView*> views) {
  return std::all_of(views.begin(), views.end(),
                     [](const TensorView* view) { return Aligned16(view->data); });
}

// The plan of a call; nullptr where our kernels are to serve it.
Result<const AttentionPlan*> PlanOf(const Stream& stream, std::string_view op,
                                    const CudnnAttentionShape& shape, bool backward, bool aligned,
                                    bool drops) {
  std::shared_ptr<CudnnAttention>& attention = stream.cuda->cudnn_attention();
  if (attention == nullptr) attention = std::make_shared<CudnnAttention>();
  const auto plan = [&]() -> Result<const AttentionPlan*> {
    if (shape.length == 0) {
      return UnavailableError("the lengths of the sequences differ, or are not known");
    }
    if (drops) return UnavailableError("its dropout draws other masks than ours");
    if (!aligned) return UnavailableError("rows are not aligned to 16 bytes");
    return attention->Get(stream, shape, backward);
  }();
  if (plan.ok()) return plan;
  const std::string& reason = plan.status().message();
  if (stream.cuda->attention() == AttentionChoice::kCudnnOnly) {
    return UnavailableError(std::string(op) + " by cuDNN alone: " + reason);
  }
  if (attention->IsNew(std::string(op) + reason)) {
    WEFT_LOG_INFO << op << " by our own kernels instead of cuDNN: " << reason;
  }
  return nullptr;
}

Status Ran(std::string_view op, Status status) {
  if (status.ok()) return status;
  return InternalError(std::string(op) + ": " + status.message());
}

}  // namespace

Result<bool> CudnnAttentionForward(const Stream& stream, std::string_view op,
                                   const AttentionForwardArgs& args) {
  if (stream.cuda->attention() == AttentionChoice::kOwn) return false;
  const ScopedDevice use(stream.device.index);
  WEFT_RETURN_IF_CUDA_ERROR(op, use.status());
  const CudnnAttentionShape shape = ShapeOf(args);
  WEFT_ASSIGN_OR_RETURN(
      const AttentionPlan* plan,
      PlanOf(stream, op, shape, false, AreAligned({&args.q, &args.k, &args.v, &args.out}),
             args.dropout.probability > 0));
  if (plan == nullptr) return false;
  const auto window = static_cast<float>(shape.window);
  WEFT_ASSIGN_OR_RETURN(
      void* workspace, stream.cuda->Scratch(op, static_cast<size_t>(plan->plan.workspace_bytes())));
  WEFT_RETURN_IF_ERROR(Ran(op, plan->plan.Run(stream.cuda->cudnn_attention()->handle(),
                                              Bindings(plan->tensors, args, window), workspace)));
  return true;
}

Result<bool> CudnnAttentionBackward(const Stream& stream, std::string_view op,
                                    const AttentionBackwardArgs& args) {
  if (stream.cuda->attention() == AttentionChoice::kOwn) return false;
  const ScopedDevice use(stream.device.index);
  WEFT_RETURN_IF_CUDA_ERROR(op, use.status());
  const AttentionForwardArgs& forward = args.forward;
  const CudnnAttentionShape shape = ShapeOf(args);
  WEFT_ASSIGN_OR_RETURN(const AttentionPlan* plan,
                        PlanOf(stream, op, shape, true,
                               AreAligned({&forward.q, &forward.k, &forward.v, &forward.out,
                                           &args.dout, &args.dq, &args.dk, &args.dv}),
                               forward.dropout.probability > 0));
  if (plan == nullptr) return false;
  const auto window = static_cast<float>(shape.window);
  const auto queries = static_cast<size_t>(shape.sequences * shape.length * shape.heads);
  const size_t mean = RoundedUp(static_cast<size_t>(plan->plan.workspace_bytes()));
  const size_t dq_sums = mean + RoundedUp(queries * sizeof(float));
  const size_t bytes = dq_sums + queries * static_cast<size_t>(shape.head_dim) * sizeof(float);
  WEFT_ASSIGN_OR_RETURN(void* scratch, stream.cuda->Scratch(op, bytes));
  char* const at = static_cast<char*>(scratch);
  const CudnnAttentionTensors& tensors = plan->tensors;
  std::vector<CudnnPlan::Binding> bindings = Bindings(tensors, forward, window);
  bindings.insert(bindings.end(), {{tensors.one, &kOne},
                                   {tensors.dout, args.dout.data},
                                   {tensors.dq, args.dq.data},
                                   {tensors.dk, args.dk.data},
                                   {tensors.dv, args.dv.data},
                                   {tensors.mean, at + mean},
                                   {tensors.dq_sums, at + dq_sums}});
  WEFT_RETURN_IF_ERROR(
      Ran(op, plan->plan.Run(stream.cuda->cudnn_attention()->handle(), bindings, scratch)));
  return true;
}

}  // namespace weft::kernels::cuda
