#pragma once

#include <cstddef>
#include <cstdint>

#include "common/status.h"

struct cudnnContext;
struct CUstream_st;

namespace weft::kernels::cuda {

/// The functions and numbers of cuDNN's graph API (9.8 and later) that graphs of ours need, found
/// at run time: programs start on machines that have no cuDNN. Declared here, since its headers
/// need not be there either; cudnn_declarations_check.cc holds this to cudnn.h where it is.
/// Functions that return an int return 0 when they succeed.
struct CudnnLibrary {
  using Handle = cudnnContext*;
  using Descriptor = void*;

  enum DescriptorType : int {
    kPointwiseDescriptor = 0,
    kEngineConfigDescriptor = 3,
    kHeuristicsDescriptor = 4,
    kPlanDescriptor = 5,
    kPointwiseOperation = 13,
    kGraphDescriptor = 15,
    kVariantPackDescriptor = 16,
    kTensorDescriptor = 17,
    kMatmulDescriptor = 18,
    kMatmulOperation = 19,
    kReductionDescriptor = 21,
    kReductionOperation = 22,
    kReshapeOperation = 31,
    kDevicePropertiesDescriptor = 38,
  };
  enum Attribute : int {
    kPointwiseMode = 0,
    kPointwiseComputeType = 1,
    kPointwiseAxis = 9,
    kHeuristicsMode = 200,
    kHeuristicsGraph = 201,
    kHeuristicsResults = 202,
    kHeuristicsDevice = 204,
    kPlanHandle = 400,
    kPlanEngineConfig = 401,
    kPlanWorkspaceSize = 402,
    kPlanDevice = 407,
    kPointwiseOperationDescriptor = 750,
    kPointwiseOperationX = 751,
    kPointwiseOperationB = 752,
    kPointwiseOperationY = 753,
    kPointwiseOperationT = 758,
    kGraphHandle = 800,
    kGraphOperations = 801,
    kTensorAlignment = 900,
    kTensorDataType = 901,
    kTensorDimensions = 902,
    kTensorStrides = 903,
    kTensorId = 906,
    kTensorIsVirtual = 907,
    kTensorIsByValue = 908,
    kVariantPackIds = 1000,
    kVariantPackPointers = 1001,
    kVariantPackWorkspace = 1003,
    kMatmulComputeType = 1500,
    kMatmulOperationA = 1520,
    kMatmulOperationB = 1521,
    kMatmulOperationC = 1522,
    kMatmulOperationDescriptor = 1523,
    kReductionOperator = 1600,
    kReductionComputeType = 1601,
    kReductionOperationX = 1610,
    kReductionOperationY = 1611,
    kReductionOperationDescriptor = 1612,
    kReshapeOperationX = 2200,
    kReshapeOperationY = 2201,
    kDeviceJson = 2702,
  };
  enum AttributeType : int {
    kHandleType = 0,
    kDataTypeType = 1,
    kBooleanType = 2,
    kInt64Type = 3,
    kPointerType = 6,
    kHeuristicsModeType = 8,
    kPointwiseModeType = 14,
    kDescriptorType = 15,
    kReductionOperatorType = 18,
    kCharType = 24,
  };
  enum DataType : int { kFloat = 0, kHalf = 2, kInt32 = 4, kBFloat16 = 9, kBoolean = 11 };
  enum Pointwise : int {
    kAdd = 0,
    kMul = 1,
    kDiv = 6,
    kSub = 9,
    kExp = 13,
    kLog = 15,
    kIdentity = 21,
    kGreater = 302,
    kGreaterOrEqual = 303,
    kIndex = 501,
    kSelect = 601,
  };
  enum Reduction : int { kSum = 0, kMax = 3 };
  enum Heuristics : int { kHeuristicsBest = 3 };

  size_t (*get_version)();  ///< 10000 times the major one, 100 times the minor one, and the patch.
  const char* (*get_error_string)(int status);
  void (*get_last_error)(char* message, size_t bytes);  ///< Of this thread.
  int (*create)(Handle* handle);                        ///< On the current device.
  int (*destroy)(Handle handle);
  int (*set_stream)(Handle handle, CUstream_st* stream);
  int (*create_descriptor)(int type, Descriptor* descriptor);
  int (*destroy_descriptor)(Descriptor descriptor);
  int (*finalize)(Descriptor descriptor);
  int (*set_attribute)(Descriptor descriptor, int name, int type, int64_t count,
                       const void* values);
  int (*get_attribute)(Descriptor descriptor, int name, int type, int64_t room, int64_t* count,
                       void* values);
  int (*execute)(Handle handle, Descriptor plan, Descriptor variant_pack);
};

/// Loads libcudnn.so.9 (the file WEFT_CUDNN_LIBRARY names, when set), once. kUnavailable says what
/// is missing.
Result<const CudnnLibrary*> LoadCudnn();

}  // namespace weft::kernels::cuda
