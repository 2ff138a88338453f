#include "worker/engine/tensor/transfer.h"

#include <cstring>
#include <string>

#include "kernels/cuda/device.h"

namespace weft::engine {
namespace {

bool OnDevice(const TensorView& view) {
  return view.device.type == DeviceType::kCuda;
}

void CheckContiguous(const Stream& stream, const TensorView& view) {
  WEFT_CHECK(view.Contiguous(), "copies are of contiguous tensors");
  WEFT_CHECK(!OnDevice(view) || stream.cuda != nullptr, "memory of a device needs its stream");
}

size_t RowBytes(const TensorView& view, int64_t elements) {
  return static_cast<size_t>(elements) * DTypeSize(view.dtype);
}

}  // namespace

Status Download(const Stream& stream, const TensorView& from, void* host) {
  CheckContiguous(stream, from);
  const size_t bytes = from.Bytes();
  if (bytes == 0) return OkStatus();
  if (!OnDevice(from)) {
    std::memcpy(host, from.data, bytes);
    return OkStatus();
  }
  WEFT_RETURN_IF_ERROR(kernels::cuda::CopyToHost(stream, host, from.data, bytes));
  return stream.cuda->Synchronize();
}

Status Upload(const Stream& stream, const void* host, const TensorView& to) {
  CheckContiguous(stream, to);
  const size_t bytes = to.Bytes();
  if (bytes == 0) return OkStatus();
  if (!OnDevice(to)) {
    std::memcpy(to.data, host, bytes);
    return OkStatus();
  }
  return kernels::cuda::CopyToDevice(stream, to.data, host, bytes);
}

Status Clear(const Stream& stream, const TensorView& view) {
  CheckContiguous(stream, view);
  if (view.Bytes() == 0) return OkStatus();
  if (OnDevice(view)) return kernels::cuda::FillBytes(stream, view.data, 0, view.Bytes());
  std::memset(view.data, 0, view.Bytes());
  return OkStatus();
}

Status CopyRows(const Stream& stream, const TensorView& from, const TensorView& to) {
  const auto rows = static_cast<size_t>(from.shape.Rows());
  const size_t width = RowBytes(from, from.shape[-1]);
  const size_t from_pitch = RowBytes(from, from.row_stride);
  const size_t to_pitch = RowBytes(to, to.row_stride);
  if (OnDevice(from)) {
    return kernels::cuda::CopyRowsOnDevice(stream, to.data, to_pitch, from.data, from_pitch, width,
                                           rows);
  }
  for (size_t row = 0; row < rows; ++row) {
    std::memcpy(static_cast<char*>(to.data) + row * to_pitch,
                static_cast<const char*>(from.data) + row * from_pitch, width);
  }
  return OkStatus();
}

Result<HostCopy> HostCopy::Of(const Stream& stream, const TensorView& tensor) {
  HostCopy copy;
  copy.view_ = tensor;
  if (!OnDevice(tensor)) return copy;
  copy.storage_ = std::make_unique_for_overwrite<std::byte[]>(tensor.Bytes());
  copy.view_ = TensorView(copy.storage_.get(), tensor.dtype, tensor.shape);
  WEFT_RETURN_IF_ERROR(Download(stream, tensor, copy.storage_.get()));
  return copy;
}

Result<Readback> Readback::New(Context& context, size_t bytes) {
  Readback readback;
  readback.bytes_ = bytes;
  if (context.stream.device.type == DeviceType::kCpu) {
    readback.own_ = std::make_unique<std::byte[]>(bytes);
    return readback;
  }
  WEFT_ASSIGN_OR_RETURN(readback.on_device_, Tensor::New(context, Component::kWorkspace, DType::kU8,
                                                         Shape{static_cast<int64_t>(bytes)}));
  WEFT_ASSIGN_OR_RETURN(readback.pinned_, kernels::cuda::PinnedMemory::Allocate(bytes));
  std::memset(readback.pinned_.data(), 0, bytes);
  WEFT_ASSIGN_OR_RETURN(readback.fetched_, kernels::cuda::Event::Create(context.stream));
  WEFT_RETURN_IF_ERROR(readback.Clear(context));
  return readback;
}

void* Readback::device() const {
  return own_ != nullptr ? own_.get() : on_device_.view().data;
}

void* Readback::host() const {
  return own_ != nullptr ? own_.get() : pinned_.data();
}

Status Readback::Clear(Context& context) {
  if (own_ == nullptr) return engine::Clear(context.stream, on_device_);
  std::memset(own_.get(), 0, bytes_);
  return OkStatus();
}

Status Readback::Fetch(Context& context) {
  if (own_ != nullptr) return OkStatus();
  WEFT_RETURN_IF_ERROR(kernels::cuda::CopyToHost(context.stream, pinned_.data(), device(), bytes_));
  return fetched_.Place(context.stream);
}

Result<const void*> Readback::Wait() {
  if (own_ == nullptr) WEFT_RETURN_IF_ERROR(fetched_.Wait());
  return host();
}

Status Readback::Store(Context& context, size_t offset, size_t bytes) {
  if (own_ != nullptr) return OkStatus();
  return kernels::cuda::CopyToDevice(context.stream, static_cast<std::byte*>(device()) + offset,
                                     static_cast<std::byte*>(host()) + offset, bytes);
}

}  // namespace weft::engine
