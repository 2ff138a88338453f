// A CUDA driver without a device, for cudnn_plans_test: cuDNN compiles kernels for a device that is
// described to it, and at the end hands them to the driver to load, which here does nothing. Every
// call about a device finds none.

// NOLINTBEGIN(readability-identifier-naming): the names are CUDA's.
namespace {

constexpr int kNoDevice = 100;
int something;

}  // namespace

extern "C" {

int cuInit(unsigned) {
  return kNoDevice;
}
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = 0;
  return 0;
}
int cuGetErrorName(int, const char** text) {
  *text = "no device";
  return 0;
}
int cuGetErrorString(int, const char** text) {
  *text = "no device";
  return 0;
}
int cuLibraryLoadData(void** library, const void*, void*, void**, unsigned, void*, void**,
                      unsigned) {
  *library = &something;
  return 0;
}
int cuLibraryGetKernel(void** kernel, void*, const char*) {
  *kernel = &something;
  return 0;
}
int cuLibraryUnload(void*) {
  return 0;
}
int cuKernelSetAttribute() {
  return 0;
}

// cuDNN demands that these are there.
#define WEFT_FINDS_NO_DEVICE(function) \
  int function() {                     \
    return kNoDevice;                  \
  }
WEFT_FINDS_NO_DEVICE(cuCtxGetCurrent)
WEFT_FINDS_NO_DEVICE(cuCtxGetDevice)
WEFT_FINDS_NO_DEVICE(cuCtxGetLimit)
WEFT_FINDS_NO_DEVICE(cuCtxPopCurrent)
WEFT_FINDS_NO_DEVICE(cuCtxPushCurrent)
WEFT_FINDS_NO_DEVICE(cuDeviceGet)
WEFT_FINDS_NO_DEVICE(cuDeviceGetAttribute)
WEFT_FINDS_NO_DEVICE(cuKernelGetAttribute)
WEFT_FINDS_NO_DEVICE(cuKernelGetFunction)
WEFT_FINDS_NO_DEVICE(cuLaunchCooperativeKernel)
WEFT_FINDS_NO_DEVICE(cuLaunchKernel)
WEFT_FINDS_NO_DEVICE(cuLaunchKernelEx)
WEFT_FINDS_NO_DEVICE(cuLibraryLoadFromFile)
WEFT_FINDS_NO_DEVICE(cuLinkAddData)
WEFT_FINDS_NO_DEVICE(cuLinkComplete)
WEFT_FINDS_NO_DEVICE(cuLinkCreate)
WEFT_FINDS_NO_DEVICE(cuLinkDestroy)
WEFT_FINDS_NO_DEVICE(cuOccupancyMaxPotentialClusterSize)
WEFT_FINDS_NO_DEVICE(cuStreamGetCtx)

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
