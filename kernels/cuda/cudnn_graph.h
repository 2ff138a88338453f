#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "common/dtype.h"
#include "common/status.h"
#include "kernels/cuda/cudnn_library.h"

namespace weft::kernels::cuda {

/// The descriptors of a graph or a plan; destroyed with it.
class CudnnDescriptors {
 public:
  explicit CudnnDescriptors(const CudnnLibrary& library) : library_(&library) {}
  ~CudnnDescriptors();
  CudnnDescriptors(CudnnDescriptors&& other) noexcept;
  CudnnDescriptors& operator=(CudnnDescriptors&& other) noexcept;

  const CudnnLibrary& library() const { return *library_; }

  Result<CudnnLibrary::Descriptor> New(CudnnLibrary::DescriptorType type);

 private:
  const CudnnLibrary* library_;
  std::vector<CudnnLibrary::Descriptor> all_;
};

/// kUnavailable with the library's reason when `status` is an error: it does not serve this.
Status CudnnStatus(const CudnnLibrary& library, std::string_view call, int status);

/// How to compute a graph on one kind of device, with the memory that its kernels need besides the
/// tensors.
class CudnnPlan {
 public:
  /// A tensor of the graph, and where it is: in device memory, or, of a single value, on the host,
  /// where it is read before Run() returns.
  struct Binding {
    int64_t tensor;
    const void* data;
  };

  int64_t workspace_bytes() const { return workspace_bytes_; }

  /// Enqueues it on the stream of `handle`. All tensors of the graph that are not between
  /// operations are bound; `workspace` is aligned to 256 bytes.
  Status Run(CudnnLibrary::Handle handle, std::span<const Binding> bindings, void* workspace) const;

 private:
  friend class CudnnGraph;
  CudnnPlan(CudnnDescriptors descriptors, CudnnLibrary::Descriptor plan, int64_t workspace_bytes)
      : descriptors_(std::move(descriptors)), plan_(plan), workspace_bytes_(workspace_bytes) {}

  CudnnDescriptors descriptors_;
  CudnnLibrary::Descriptor plan_;
  int64_t workspace_bytes_;
};

/// A graph of operations on tensors of four dimensions, as cuDNN wants it described. What fails is
/// reported by Compile(); until then descriptions go on.
class CudnnGraph {
 public:
  struct Layout {
    std::array<int64_t, 4> sizes;
    std::array<int64_t, 4> strides;  ///< In elements.
  };
  struct Tensor {
    CudnnLibrary::Descriptor descriptor;
    int64_t id;
    Layout layout;
  };

  explicit CudnnGraph(const CudnnLibrary& library) : descriptors_(library) {}

  /// Bound to device memory aligned to 16 bytes.
  Tensor Bound(CudnnLibrary::DataType type, const Layout& layout);
  /// Bound to one f32 on the host.
  Tensor Number();
  /// Between operations: need not exist.
  Tensor Between(CudnnLibrary::DataType type, const Layout& layout);

  /// c = a b, of the last two dimensions; heads of b are shared by as many of a. Sums are f32.
  void Multiply(const Tensor& a, const Tensor& b, const Tensor& c);
  /// y = mode(x) or mode(x, b), computed in f32; b may have dimensions of size 1.
  void Pointwise(CudnnLibrary::Pointwise mode, const Tensor& x, const Tensor& y);
  void Pointwise(CudnnLibrary::Pointwise mode, const Tensor& x, const Tensor& b, const Tensor& y);
  /// y = each element's index along a dimension.
  void Index(int64_t dimension, const Tensor& x, const Tensor& y);
  /// y = mode(x, b), a truth value.
  void Compare(CudnnLibrary::Pointwise mode, const Tensor& x, const Tensor& b, const Tensor& y);
  /// y = where ? x : b.
  void Select(const Tensor& x, const Tensor& b, const Tensor& where, const Tensor& y);
  /// y = x reduced over the dimensions in which y is smaller.
  void Reduce(CudnnLibrary::Reduction mode, const Tensor& x, const Tensor& y);
  /// y is x with other sizes and strides of the same elements.
  void Reshape(const Tensor& x, const Tensor& y);

  /// The first plan that the library's heuristics propose and that it can build, for the device of
  /// a handle or, without a device, for one of these properties (a descriptor). Ends the graph.
  /// kUnavailable with the library's reason where it has none. Takes seconds: kernels are compiled.
  Result<CudnnPlan> Compile(CudnnLibrary::Handle handle);
  Result<CudnnPlan> CompileFor(CudnnLibrary::Descriptor device_properties);

 private:
  struct PointwiseInputs;
  struct Attribute;
  struct Device;

  Tensor NewTensor(CudnnLibrary::DataType type, const Layout& layout, bool is_virtual,
                   bool by_value);
  void NewPointwise(CudnnLibrary::Pointwise mode, CudnnLibrary::DataType compute,
                    const PointwiseInputs& inputs, const Tensor& y);
  CudnnLibrary::Descriptor New(CudnnLibrary::DescriptorType type,
                               std::initializer_list<Attribute> attributes);
  Result<CudnnPlan> CompileOn(const Device& device);
  Result<CudnnPlan> PlanOf(CudnnLibrary::Descriptor config, const Device& device);

  CudnnDescriptors descriptors_;
  std::vector<CudnnLibrary::Descriptor> operations_;
  int64_t last_id_ = 0;
  Status status_;
};

/// The type of bf16, f16 and f32 elements.
CudnnLibrary::DataType CudnnType(DType dtype);

}  // namespace weft::kernels::cuda
