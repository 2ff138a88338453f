#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "kernels/stream.h"

struct CUstream_st;

namespace weft::kernels::cuda {

class CudnnAttention;
class CusparseHandle;
class CusparseLtHandle;
class GemmPlans;

/// CUDA devices of this machine; 0 where there are none, no driver, or no CUDA back end.
int DeviceCount();

/// Memory on a device, at addresses that are multiples of 256. Not thread-safe.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;

  /// kExhausted when there is not as much; kUnavailable without a CUDA back end.
  static Result<DeviceMemory> Allocate(int device, size_t bytes);

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

  /// Copies `bytes`, from and to the beginning or what lies `offset` behind it, after all that is
  /// enqueued on the device, and returns when that is done.
  Status CopyFrom(const void* host, size_t bytes, size_t offset = 0);
  Status CopyTo(void* host, size_t bytes) const;

 private:
  [[maybe_unused]] int device_ = 0;  ///< Used by the CUDA back end alone.
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

/// What kernels ask of a device before they choose their grids.
struct DeviceLimits {
  int multiprocessors = 0;
  int shared_bytes = 0;  ///< Most that a block may ask for.
  int major = 0;         ///< Compute capability.
  int minor = 0;
};

/// Who computes attention: our kernels, cuDNN where it takes a call and ours where not, or cuDNN
/// alone, whose refusals are errors (for tests and timing).
enum class AttentionChoice { kOwn, kCudnn, kCudnnOnly };

/// Who computes 2:4 products in bf16 and f16: our kernels, or cuSPARSELt where it takes a weight.
enum class Sparse24Choice { kOwn, kCusparseLt };

struct StreamOptions {
  /// For tests: scratch memory has the exact size of each request and is poisoned before.
  bool checked = false;
  /// For tests: takes a newer device for the newest one of this compute capability (major).
  int newest = 1000;
  /// Not set: what WEFT_ATTENTION says (own, cudnn or cudnn-only), kOwn when it says nothing.
  std::optional<AttentionChoice> attention = {};
  /// Not set: what WEFT_SPARSE24 says (own or cusparselt), kOwn when it says nothing.
  std::optional<Sparse24Choice> sparse24 = {};
};

/// A stream of a CUDA device and what the operations on it share. Not thread-safe, like Stream.
/// Kernels are enqueued by the thread that made it: its device is that thread's current one.
class StreamState {
 public:
  /// Makes `device` the current one of the calling thread, for good. kUnavailable when there is no
  /// such device or no CUDA back end, kInvalid when WEFT_ATTENTION or WEFT_SPARSE24 says something
  /// else.
  static Result<std::unique_ptr<StreamState>> Create(int device, StreamOptions options = {});
  ~StreamState();
  StreamState(const StreamState&) = delete;
  StreamState& operator=(const StreamState&) = delete;

  /// To hand to operations; valid as long as this.
  Stream stream() { return {.device = {DeviceType::kCuda, device_}, .cuda = this}; }

  CUstream_st* handle() const { return handle_; }
  const DeviceLimits& limits() const { return limits_; }

  /// `bytes` of device memory that `op` may use until the stream has run what `op` enqueues; the
  /// next request may return the same. Grows while requests are larger than any before, which ends
  /// with the first step; so it fails while a graph is captured.
  Result<void*> Scratch(std::string_view op, size_t bytes);

  /// Gives back what Scratch has outgrown. Where there is any it waits for everything on the
  /// device, on other streams too: not while something there waits for what the host is yet to do,
  /// as messages that have been asked for may.
  void FreeOutgrown() { outgrown_.clear(); }

  /// Where that is, which changes when it grows.
  const void* scratch() const { return scratch_.data(); }

  /// What Gemm() of kernels/cuda/gemm.h keeps; nullptr until its first call.
  std::shared_ptr<GemmPlans>& gemm_plans() { return gemm_plans_; }

  AttentionChoice attention() const { return attention_; }

  /// What kernels/attention/attention_cudnn.h keeps; nullptr until its first call.
  std::shared_ptr<CudnnAttention>& cudnn_attention() { return cudnn_attention_; }

  Sparse24Choice sparse24() const { return sparse24_; }

  /// What kernels/sparse24/csr_weight.h and cusparselt_matrix.h keep; nullptr until their first
  /// calls.
  std::shared_ptr<CusparseHandle>& cusparse() { return cusparse_; }
  std::shared_ptr<CusparseLtHandle>& cusparselt() { return cusparselt_; }

  /// Waits for everything enqueued, and returns what went wrong in it.
  Status Synchronize();

 private:
  StreamState() = default;

  int device_ = 0;
  StreamOptions options_;
  DeviceLimits limits_;
  CUstream_st* handle_ = nullptr;
  DeviceMemory scratch_;
  std::vector<DeviceMemory> outgrown_;  ///< That the stream may still read and write.
  std::shared_ptr<GemmPlans> gemm_plans_;
  AttentionChoice attention_ = AttentionChoice::kOwn;
  std::shared_ptr<CudnnAttention> cudnn_attention_;
  Sparse24Choice sparse24_ = Sparse24Choice::kOwn;
  std::shared_ptr<CusparseHandle> cusparse_;
  std::shared_ptr<CusparseLtHandle> cusparselt_;
};

}  // namespace weft::kernels::cuda
