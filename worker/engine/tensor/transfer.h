#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include "kernels/cuda/transfer.h"
#include "kernels/stream.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

// The only way of host code to the elements of tensors, which may be on a device. On a CPU all of
// it is a plain access to memory.

/// Copies contiguous elements to `host`, and returns when they are there.
Status Download(const Stream& stream, const TensorView& from, void* host);

/// Copies contiguous elements from `host`, which may change once this returns.
Status Upload(const Stream& stream, const void* host, const TensorView& to);

/// Makes contiguous elements zero.
Status Clear(const Stream& stream, const TensorView& view);

/// Copies rows from one tensor to another of the same shape and type; both may be strided.
Status CopyRows(const Stream& stream, const TensorView& from, const TensorView& to);

/// The elements of a contiguous tensor for the host to read: where they are, or a copy.
class HostCopy {
 public:
  static Result<HostCopy> Of(const Stream& stream, const TensorView& tensor);

  const TensorView& view() const { return view_; }

 private:
  TensorView view_;
  std::unique_ptr<std::byte[]> storage_;
};

/// Has `fill`, void(const TensorView&), write the elements of a contiguous tensor on the host. It
/// must write all of them.
template <class Fill>
Status FillOnHost(const Stream& stream, const TensorView& tensor, Fill&& fill) {
  if (tensor.device.type == DeviceType::kCpu) {
    fill(tensor);
    return OkStatus();
  }
  const auto storage = std::make_unique_for_overwrite<std::byte[]>(tensor.Bytes());
  fill(TensorView(storage.get(), tensor.dtype, tensor.shape));
  return Upload(stream, storage.get(), tensor);
}

/// Numbers that kernels write and the host reads, once a step: on a device a place there and a
/// pinned one here.
class Readback {
 public:
  /// All zero.
  static Result<Readback> New(Context& context, size_t bytes);

  /// The memory as kernels see it.
  void* device() const;

  /// Enqueues that device() becomes zero.
  Status Clear(Context& context);
  /// Enqueues the copy to the host. No further one before Wait.
  Status Fetch(Context& context);
  /// Waits until the host can read what was fetched: for the work before Fetch, no later one.
  Result<const void*> Wait();
  /// Enqueues the copy of `bytes` at `offset` of what host() holds back to device().
  Status Store(Context& context, size_t offset, size_t bytes);

  /// What was fetched; the host may change it after Wait.
  void* host() const;

 private:
  size_t bytes_ = 0;
  std::unique_ptr<std::byte[]> own_;  ///< On a CPU device() and host() alike.
  Tensor on_device_;
  kernels::cuda::PinnedMemory pinned_;
  kernels::cuda::Event fetched_;
};

/// A Readback of one T.
template <class T>
class ReadbackOf {
 public:
  static_assert(std::is_trivially_copyable_v<T>);

  static Result<ReadbackOf> New(Context& context, size_t count = 1) {
    ReadbackOf readback;
    WEFT_ASSIGN_OR_RETURN(readback.memory_, Readback::New(context, sizeof(T) * count));
    return readback;
  }

  T* device() const { return static_cast<T*>(memory_.device()); }
  T* host() const { return static_cast<T*>(memory_.host()); }
  Status Clear(Context& context) { return memory_.Clear(context); }
  Status Fetch(Context& context) { return memory_.Fetch(context); }
  Result<const T*> Wait() {
    WEFT_ASSIGN_OR_RETURN(const void* host, memory_.Wait());
    return static_cast<const T*>(host);
  }
  /// Brings `value` to device(); no sooner than the last one has arrived.
  Status Store(Context& context, const T& value) {
    *host() = value;
    return memory_.Store(context, 0, sizeof(T));
  }
  /// Brings member `member` of host() to device().
  template <class Member>
  Status Store(Context& context, Member T::*member) {
    const auto* base = reinterpret_cast<const std::byte*>(host());
    const auto* at = reinterpret_cast<const std::byte*>(&(host()->*member));
    return memory_.Store(context, static_cast<size_t>(at - base), sizeof(Member));
  }

 private:
  Readback memory_;
};

}  // namespace weft::engine
