#include "kernels/cuda/transfer.h"

namespace weft::kernels::cuda {
namespace {

Status NoCuda() {
  return UnavailableError("this build has no CUDA back end; hint: cmake --preset cuda");
}

}  // namespace

PinnedMemory::~PinnedMemory() {}
Result<PinnedMemory> PinnedMemory::Allocate(size_t) {
  return NoCuda();
}

Event::~Event() {}
Result<Event> Event::Create(const Stream&, bool) {
  return NoCuda();
}
Status Event::Place(const Stream&) {
  return NoCuda();
}
Status Event::Block(const Stream&) const {
  return NoCuda();
}
Status Event::Wait() const {
  return NoCuda();
}
Result<bool> Event::Passed() const {
  return NoCuda();
}
Result<double> Event::SecondsSince(const Event&) const {
  return NoCuda();
}

Status CopyToDevice(const Stream&, void*, const void*, size_t) {
  return NoCuda();
}
Status CopyToHost(const Stream&, void*, const void*, size_t) {
  return NoCuda();
}
Status CopyRowsOnDevice(const Stream&, void*, size_t, const void*, size_t, size_t, size_t) {
  return NoCuda();
}
Status FillBytes(const Stream&, void*, uint8_t, size_t) {
  return NoCuda();
}
Result<MemoryInfo> MemoryOf(int) {
  return NoCuda();
}

}  // namespace weft::kernels::cuda
