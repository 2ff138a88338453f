#pragma once

// What the fakes of cuSPARSE and cuSPARSELt have in common.

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/dtype.h"
#include "kernels/cuda/cusparse_library.h"
#include "tests/gpu/host/cusparse.h"
#include "tests/gpu/host/device_memory.h"

namespace weft::host_cuda {

/// Numbers of cusparseStatus_t.
enum CusparseFailure : int { kCusparseOk = 0, kCusparseInvalid = 3, kCusparseUnsupported = 10 };

/// What is counted and said, of both.
struct CusparseFakeState {
  CusparseCalls calls;
  int64_t alive = 0;
  bool present = true;
  std::string problem;
};
CusparseFakeState& CusparseFake();

/// kCusparseInvalid, with a reason that the fake's error texts are.
int CusparseBad(std::string why);
const char* CusparseErrorString(int status);

/// Bytes of an element of a CusparseLibrary::DataType; 0 for another number.
size_t CusparseElementBytes(int type);
float ReadElement(int type, const void* from, int64_t i);
void WriteElement(int type, void* to, int64_t i, float value);

/// Whether a matrix of `lines` lines of `width` elements, `leading` elements apart, is device
/// memory.
bool LinesAreDeviceMemory(const void* at, int64_t lines, int64_t width, int64_t leading, int type);

}  // namespace weft::host_cuda
