#pragma once

// What the sanitizers must know of fibers; nothing without them.

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(WEFT_HOST_CUDA_TSAN)
#include <sanitizer/tsan_interface.h>

// Exported by its run-time library, declared in no header of it.
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);
#endif

namespace weft::host_cuda {

#if defined(WEFT_HOST_CUDA_TSAN)
inline constexpr bool kTsan = true;
inline void* TsanCurrent() {
  return __tsan_get_current_fiber();
}
inline void* TsanCreate() {
  return __tsan_create_fiber(0);
}
inline void TsanSwitch(void* fiber) {
  __tsan_switch_to_fiber(fiber, __tsan_switch_to_fiber_no_sync);
}
inline void TsanRelease(void* at) {
  __tsan_release(at);
}
inline void TsanAcquire(void* at) {
  __tsan_acquire(at);
}
/// While it lives ThreadSanitizer does not see what this fiber reads, writes, allocates and frees:
/// for what the emulator keeps for itself, which fibers of one thread cannot race for.
class TsanHidden {
 public:
  TsanHidden() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~TsanHidden() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
  TsanHidden(const TsanHidden&) = delete;
  TsanHidden& operator=(const TsanHidden&) = delete;
};
#else
inline constexpr bool kTsan = false;
inline void* TsanCurrent() {
  return nullptr;
}
inline void* TsanCreate() {
  return nullptr;
}
inline void TsanSwitch(void*) {}
inline void TsanRelease(void*) {}
inline void TsanAcquire(void*) {}
struct TsanHidden {
  TsanHidden() {}
};
#endif

#if defined(__SANITIZE_ADDRESS__)
inline void AsanStartSwitch(void** save, const void* bottom, size_t size) {
  __sanitizer_start_switch_fiber(save, bottom, size);
}
inline void AsanFinishSwitch(void* saved, const void** bottom, size_t* size) {
  __sanitizer_finish_switch_fiber(saved, bottom, size);
}
inline void AsanPoison(void* at, size_t size) {
  ASAN_POISON_MEMORY_REGION(at, size);
}
inline void AsanUnpoison(void* at, size_t size) {
  ASAN_UNPOISON_MEMORY_REGION(at, size);
}
#else
inline void AsanStartSwitch(void**, const void*, size_t) {}
inline void AsanFinishSwitch(void*, const void**, size_t*) {}
inline void AsanPoison(void*, size_t) {}
inline void AsanUnpoison(void*, size_t) {}
#endif

}  // namespace weft::host_cuda
