#include "kernels/cuda/copy_rate.h"

#include <algorithm>
#include <string>

#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"

namespace weft::kernels::cuda {
namespace {

#define WEFT_RETURN_IF_CUDA_ERROR(op, call)                                 \
  do {                                                                      \
    if (const cudaError_t weft_error_ = (call); weft_error_ != cudaSuccess) \
      return RuntimeError(op, #call, weft_error_);                          \
  } while (false)

constexpr int kRuns = 5;

// What a measurement holds on one device, freed at its end whatever happened.
struct Buffers {
  void* from = nullptr;
  void* to = nullptr;
  void* host = nullptr;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  ~Buffers() {
    if (from != nullptr) (void)cudaFree(from);
    if (to != nullptr) (void)cudaFree(to);
    if (host != nullptr) (void)cudaFreeHost(host);
    if (begin != nullptr) (void)cudaEventDestroy(begin);
    if (end != nullptr) (void)cudaEventDestroy(end);
  }
};

// Bytes per second of the fastest of some runs after one to warm up.
template <class Copy>
Result<double> BestRate(const std::string& op, const Buffers& buffers, double bytes, Copy copy) {
  float best = 0;
  for (int run = 0; run <= kRuns; ++run) {
    WEFT_RETURN_IF_CUDA_ERROR(op, cudaEventRecord(buffers.begin));
    WEFT_RETURN_IF_CUDA_ERROR(op, copy());
    WEFT_RETURN_IF_CUDA_ERROR(op, cudaEventRecord(buffers.end));
    WEFT_RETURN_IF_CUDA_ERROR(op, cudaEventSynchronize(buffers.end));
    float milliseconds = 0;
    WEFT_RETURN_IF_CUDA_ERROR(op, cudaEventElapsedTime(&milliseconds, buffers.begin, buffers.end));
    if (run == 1 || (run > 1 && milliseconds < best)) best = milliseconds;
  }
  return bytes / (std::max(static_cast<double>(best), 1e-6) / 1e3);
}

Status Prepare(const std::string& op, int device, Buffers& buffers) {
  WEFT_RETURN_IF_CUDA_ERROR(op, cudaSetDevice(device));
  WEFT_RETURN_IF_CUDA_ERROR(op, cudaEventCreate(&buffers.begin));
  WEFT_RETURN_IF_CUDA_ERROR(op, cudaEventCreate(&buffers.end));
  return OkStatus();
}

}  // namespace

Result<CopyRates> MeasureCopies(int device, size_t bytes) {
  const std::string op = "measuring copies of CUDA device " + std::to_string(device);
  Buffers b;
  WEFT_RETURN_IF_ERROR(Prepare(op, device, b));
  WEFT_RETURN_IF_CUDA_ERROR(op, cudaMalloc(&b.from, bytes));
  WEFT_RETURN_IF_CUDA_ERROR(op, cudaMalloc(&b.to, bytes));
  WEFT_RETURN_IF_CUDA_ERROR(op, cudaMallocHost(&b.host, bytes));
  WEFT_RETURN_IF_CUDA_ERROR(op, cudaMemset(b.from, 1, bytes));
  const auto size = static_cast<double>(bytes);
  CopyRates rates;
  WEFT_ASSIGN_OR_RETURN(rates.within, BestRate(op, b, 2 * size, [&] {
                          return cudaMemcpyAsync(b.to, b.from, bytes, cudaMemcpyDeviceToDevice);
                        }));
  WEFT_ASSIGN_OR_RETURN(rates.download, BestRate(op, b, size, [&] {
                          return cudaMemcpyAsync(b.host, b.from, bytes, cudaMemcpyDeviceToHost);
                        }));
  WEFT_ASSIGN_OR_RETURN(rates.upload, BestRate(op, b, size, [&] {
                          return cudaMemcpyAsync(b.to, b.host, bytes, cudaMemcpyHostToDevice);
                        }));
  return rates;
}

Result<double> MeasurePeerCopy(int device, int peer, size_t bytes) {
  const std::string op =
      "measuring copies from CUDA device " + std::to_string(device) + " to " + std::to_string(peer);
  int reachable = 0;
  WEFT_RETURN_IF_CUDA_ERROR(op, cudaDeviceCanAccessPeer(&reachable, device, peer));
  Buffers there;
  WEFT_RETURN_IF_ERROR(Prepare(op, peer, there));
  WEFT_RETURN_IF_CUDA_ERROR(op, cudaMalloc(&there.to, bytes));
  Buffers b;
  WEFT_RETURN_IF_ERROR(Prepare(op, device, b));
  if (reachable != 0) {
    const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();
    } else {
      WEFT_RETURN_IF_CUDA_ERROR(op, error);
    }
  }
  WEFT_RETURN_IF_CUDA_ERROR(op, cudaMalloc(&b.from, bytes));
  WEFT_RETURN_IF_CUDA_ERROR(op, cudaMemset(b.from, 1, bytes));
  return BestRate(op, b, static_cast<double>(bytes), [&] {
    return cudaMemcpyPeerAsync(there.to, peer, b.from, device, bytes, nullptr);
  });
}

}  // namespace weft::kernels::cuda
