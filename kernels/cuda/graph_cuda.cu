#include "kernels/cuda/graph.h"

#include <cuda_runtime.h>

#include "kernels/cuda/scoped_device.h"

namespace weft::kernels::cuda {

Graph::~Graph() {
  // One that is running ends first. A failure is one of earlier work, which Synchronize() reports.
  if (handle_ != nullptr) (void)cudaGraphExecDestroy(handle_);
}

Status Graph::Begin(const Stream& stream) {
  // Other threads go on using the device as they like.
  WEFT_RETURN_IF_CUDA_ERROR(
      "recording a graph",
      cudaStreamBeginCapture(stream.cuda->handle(), cudaStreamCaptureModeThreadLocal));
  return OkStatus();
}

Result<Graph> Graph::End(const Stream& stream) {
  constexpr const char* kOp = "recording a graph";
  cudaGraph_t recorded = nullptr;
  WEFT_RETURN_IF_CUDA_ERROR(kOp, cudaStreamEndCapture(stream.cuda->handle(), &recorded));
  Graph graph;
  const cudaError_t made = cudaGraphInstantiate(&graph.handle_, recorded, 0);
  (void)cudaGraphDestroy(recorded);
  if (made != cudaSuccess) return RuntimeError(kOp, "cudaGraphInstantiate", made);
  return Result<Graph>(std::move(graph));
}

Status Graph::Launch(const Stream& stream) const {
  WEFT_RETURN_IF_CUDA_ERROR("launching a graph", cudaGraphLaunch(handle_, stream.cuda->handle()));
  return OkStatus();
}

}  // namespace weft::kernels::cuda
