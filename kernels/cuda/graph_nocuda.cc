#include "kernels/cuda/graph.h"

namespace weft::kernels::cuda {
namespace {

Status NoCuda() {
  return UnavailableError("this build has no CUDA back end; hint: cmake --preset cuda");
}

}  // namespace

Graph::~Graph() {}
Status Graph::Begin(const Stream&) {
  return NoCuda();
}
Result<Graph> Graph::End(const Stream&) {
  return NoCuda();
}
Status Graph::Launch(const Stream&) const {
  return NoCuda();
}

}  // namespace weft::kernels::cuda
