#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/cuda/cudnn_library.h"

namespace weft::host_cuda {

/// A tensor of a graph of cuDNN's.
struct GraphTensor {
  int64_t id = 0;
  kernels::cuda::CudnnLibrary::DataType type = kernels::cuda::CudnnLibrary::kFloat;
  std::array<int64_t, 4> sizes = {};
  std::array<int64_t, 4> strides = {};
  int64_t alignment = 0;
  bool is_virtual = false;
  bool by_value = false;

  int64_t Count() const { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }
  int64_t ElementBytes() const;
  /// Bytes from its first element to behind its last.
  int64_t Bytes() const;
};

/// An operation of it; `inputs` are A and B of a product, or X, B and T.
struct GraphOperation {
  enum Kind { kMultiply, kPointwise, kReduce, kReshape };
  Kind kind = kMultiply;
  kernels::cuda::CudnnLibrary::Pointwise mode = kernels::cuda::CudnnLibrary::kIdentity;
  kernels::cuda::CudnnLibrary::Reduction reduction = kernels::cuda::CudnnLibrary::kSum;
  int64_t axis = -1;
  std::vector<GraphTensor> inputs;
  GraphTensor output;
};

/// What is wrong with the shapes and types of an operation; empty when nothing is.
std::string CheckOperation(const GraphOperation& operation);

/// What is wrong with the order of operations: each reads what is bound or was written before.
std::string CheckOrder(const std::vector<GraphOperation>& operations);

/// Computes one operation after the other by definition, in f64, rounded to each tensor's type.
/// Numbers are given, all else lies where `bound` says.
void RunGraph(const std::vector<GraphOperation>& operations, const std::map<int64_t, void*>& bound,
              const std::map<int64_t, float>& numbers);

}  // namespace weft::host_cuda
