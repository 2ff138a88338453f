#include "kernels/cuda/cudnn_graph.h"

#include <string>
#include <utility>

namespace weft::kernels::cuda {

using C = CudnnLibrary;

CudnnDescriptors::~CudnnDescriptors() {
  // What refers to others was made after them.
  for (auto it = all_.rbegin(); it != all_.rend(); ++it) (void)library_->destroy_descriptor(*it);
}

CudnnDescriptors::CudnnDescriptors(CudnnDescriptors&& other) noexcept
    : library_(other.library_), all_(std::exchange(other.all_, {})) {}

CudnnDescriptors& CudnnDescriptors::operator=(CudnnDescriptors&& other) noexcept {
  std::swap(library_, other.library_);
  std::swap(all_, other.all_);
  return *this;
}

Result<C::Descriptor> CudnnDescriptors::New(C::DescriptorType type) {
  C::Descriptor made = nullptr;
  WEFT_RETURN_IF_ERROR(CudnnStatus(*library_, "cudnnBackendCreateDescriptor",
                                   library_->create_descriptor(type, &made)));
  all_.push_back(made);
  return made;
}

Status CudnnStatus(const C& library, std::string_view call, int status) {
  if (status == 0) return OkStatus();
  char reason[1024] = "";
  library.get_last_error(reason, sizeof reason);
  return UnavailableError(std::string(call) + ": " + library.get_error_string(status) +
                          (reason[0] != 0 ? " (" + std::string(reason) + ")" : std::string()));
}

Status CudnnPlan::Run(C::Handle handle, std::span<const Binding> bindings, void* workspace) const {
  const C& library = descriptors_.library();
  CudnnDescriptors made(library);
  WEFT_ASSIGN_OR_RETURN(C::Descriptor pack, made.New(C::kVariantPackDescriptor));
  std::vector<int64_t> ids;
  std::vector<const void*> pointers;
  for (const Binding& binding : bindings) {
    ids.push_back(binding.tensor);
    pointers.push_back(binding.data);
  }
  const auto count = static_cast<int64_t>(ids.size());
  for (int status :
       {library.set_attribute(pack, C::kVariantPackIds, C::kInt64Type, count, ids.data()),
        library.set_attribute(pack, C::kVariantPackPointers, C::kPointerType, count,
                              pointers.data()),
        library.set_attribute(pack, C::kVariantPackWorkspace, C::kPointerType, 1, &workspace),
        library.finalize(pack)}) {
    WEFT_RETURN_IF_ERROR(CudnnStatus(library, "binding tensors", status));
  }
  return CudnnStatus(library, "cudnnBackendExecute", library.execute(handle, plan_, pack));
}

/// Some values of an attribute.
struct CudnnGraph::Attribute {
  C::Attribute name;
  C::AttributeType type;
  int64_t count;
  const void* values;

  Attribute(C::Attribute its_name, const C::Descriptor& value)
      : name(its_name), type(C::kDescriptorType), count(1), values(&value) {}
  Attribute(C::Attribute its_name, const int64_t& value)
      : name(its_name), type(C::kInt64Type), count(1), values(&value) {}
  Attribute(C::Attribute its_name, const std::array<int64_t, 4>& value)
      : name(its_name), type(C::kInt64Type), count(4), values(value.data()) {}
  Attribute(C::Attribute its_name, const bool& value)
      : name(its_name), type(C::kBooleanType), count(1), values(&value) {}
  Attribute(C::Attribute its_name, const C::DataType& value)
      : name(its_name), type(C::kDataTypeType), count(1), values(&value) {}
  Attribute(C::Attribute its_name, const C::Pointwise& value)
      : name(its_name), type(C::kPointwiseModeType), count(1), values(&value) {}
  Attribute(C::Attribute its_name, const C::Reduction& value)
      : name(its_name), type(C::kReductionOperatorType), count(1), values(&value) {}
  Attribute(C::Attribute its_name, const C::Heuristics& value)
      : name(its_name), type(C::kHeuristicsModeType), count(1), values(&value) {}
  Attribute(C::Attribute its_name, const std::vector<C::Descriptor>& value)
      : name(its_name),
        type(C::kDescriptorType),
        count(static_cast<int64_t>(value.size())),
        values(value.data()) {}
  Attribute(C::Attribute its_name, C::AttributeType its_type, const void* value)
      : name(its_name), type(its_type), count(1), values(value) {}
};

/// What a plan is made for: one of these.
struct CudnnGraph::Device {
  C::Handle handle = nullptr;
  C::Descriptor properties = nullptr;
};

struct CudnnGraph::PointwiseInputs {
  const Tensor* x = nullptr;
  const Tensor* b = nullptr;
  const Tensor* where = nullptr;
  int64_t axis = -1;
};

C::Descriptor CudnnGraph::New(C::DescriptorType type, std::initializer_list<Attribute> attributes) {
  if (!status_.ok()) return nullptr;
  const C& library = descriptors_.library();
  Result<C::Descriptor> made = descriptors_.New(type);
  if (!made.ok()) {
    status_ = made.status();
    return nullptr;
  }
  const std::string what = "descriptor of type " + std::to_string(type);
  for (const Attribute& a : attributes) {
    status_ = CudnnStatus(library, "attribute " + std::to_string(a.name) + " of a " + what,
                          library.set_attribute(*made, a.name, a.type, a.count, a.values));
    if (!status_.ok()) return nullptr;
  }
  status_ = CudnnStatus(library, "ending a " + what, library.finalize(*made));
  return *made;
}

CudnnGraph::Tensor CudnnGraph::NewTensor(C::DataType type, const Layout& layout, bool is_virtual,
                                         bool by_value) {
  constexpr int64_t kAlignment = 16;
  const int64_t id = ++last_id_;
  C::Descriptor descriptor = New(C::kTensorDescriptor, {{C::kTensorDataType, type},
                                                        {C::kTensorDimensions, layout.sizes},
                                                        {C::kTensorStrides, layout.strides},
                                                        {C::kTensorId, id},
                                                        {C::kTensorAlignment, kAlignment},
                                                        {C::kTensorIsVirtual, is_virtual},
                                                        {C::kTensorIsByValue, by_value}});
  return {descriptor, id, layout};
}

CudnnGraph::Tensor CudnnGraph::Bound(C::DataType type, const Layout& layout) {
  return NewTensor(type, layout, false, false);
}

CudnnGraph::Tensor CudnnGraph::Number() {
  return NewTensor(C::kFloat, {{1, 1, 1, 1}, {1, 1, 1, 1}}, false, true);
}

CudnnGraph::Tensor CudnnGraph::Between(C::DataType type, const Layout& layout) {
  return NewTensor(type, layout, true, false);
}

void CudnnGraph::Multiply(const Tensor& a, const Tensor& b, const Tensor& c) {
  C::Descriptor how = New(C::kMatmulDescriptor, {{C::kMatmulComputeType, C::kFloat}});
  operations_.push_back(New(C::kMatmulOperation, {{C::kMatmulOperationDescriptor, how},
                                                  {C::kMatmulOperationA, a.descriptor},
                                                  {C::kMatmulOperationB, b.descriptor},
                                                  {C::kMatmulOperationC, c.descriptor}}));
}

void CudnnGraph::NewPointwise(C::Pointwise mode, C::DataType compute, const PointwiseInputs& inputs,
                              const Tensor& y) {
  C::Descriptor how = inputs.axis < 0
                          ? New(C::kPointwiseDescriptor,
                                {{C::kPointwiseMode, mode}, {C::kPointwiseComputeType, compute}})
                          : New(C::kPointwiseDescriptor, {{C::kPointwiseMode, mode},
                                                          {C::kPointwiseComputeType, compute},
                                                          {C::kPointwiseAxis, inputs.axis}});
  const Attribute described(C::kPointwiseOperationDescriptor, how);
  const Attribute x(C::kPointwiseOperationX, inputs.x->descriptor);
  const Attribute to(C::kPointwiseOperationY, y.descriptor);
  if (inputs.b == nullptr) {
    operations_.push_back(New(C::kPointwiseOperation, {described, x, to}));
    return;
  }
  const Attribute b(C::kPointwiseOperationB, inputs.b->descriptor);
  if (inputs.where == nullptr) {
    operations_.push_back(New(C::kPointwiseOperation, {described, x, b, to}));
    return;
  }
  const Attribute where(C::kPointwiseOperationT, inputs.where->descriptor);
  operations_.push_back(New(C::kPointwiseOperation, {described, x, b, where, to}));
}

void CudnnGraph::Pointwise(C::Pointwise mode, const Tensor& x, const Tensor& y) {
  NewPointwise(mode, C::kFloat, {.x = &x}, y);
}

void CudnnGraph::Pointwise(C::Pointwise mode, const Tensor& x, const Tensor& b, const Tensor& y) {
  NewPointwise(mode, C::kFloat, {.x = &x, .b = &b}, y);
}

void CudnnGraph::Index(int64_t dimension, const Tensor& x, const Tensor& y) {
  NewPointwise(C::kIndex, C::kFloat, {.x = &x, .axis = dimension}, y);
}

void CudnnGraph::Compare(C::Pointwise mode, const Tensor& x, const Tensor& b, const Tensor& y) {
  NewPointwise(mode, C::kBoolean, {.x = &x, .b = &b}, y);
}

void CudnnGraph::Select(const Tensor& x, const Tensor& b, const Tensor& where, const Tensor& y) {
  NewPointwise(C::kSelect, C::kFloat, {.x = &x, .b = &b, .where = &where}, y);
}

void CudnnGraph::Reduce(C::Reduction mode, const Tensor& x, const Tensor& y) {
  C::Descriptor how = New(C::kReductionDescriptor,
                          {{C::kReductionOperator, mode}, {C::kReductionComputeType, C::kFloat}});
  operations_.push_back(New(C::kReductionOperation, {{C::kReductionOperationDescriptor, how},
                                                     {C::kReductionOperationX, x.descriptor},
                                                     {C::kReductionOperationY, y.descriptor}}));
}

void CudnnGraph::Reshape(const Tensor& x, const Tensor& y) {
  operations_.push_back(New(C::kReshapeOperation, {{C::kReshapeOperationX, x.descriptor},
                                                   {C::kReshapeOperationY, y.descriptor}}));
}

Result<CudnnPlan> CudnnGraph::Compile(C::Handle handle) {
  return CompileOn({.handle = handle});
}

Result<CudnnPlan> CudnnGraph::CompileFor(C::Descriptor device_properties) {
  return CompileOn({.properties = device_properties});
}

Result<CudnnPlan> CudnnGraph::CompileOn(const Device& device) {
  const C& library = descriptors_.library();
  const bool has_handle = device.handle != nullptr;
  C::Descriptor graph =
      has_handle ? New(C::kGraphDescriptor, {{C::kGraphOperations, operations_},
                                             {C::kGraphHandle, C::kHandleType, &device.handle}})
                 : New(C::kGraphDescriptor, {{C::kGraphOperations, operations_}});
  C::Descriptor heuristics =
      has_handle ? New(C::kHeuristicsDescriptor,
                       {{C::kHeuristicsGraph, graph}, {C::kHeuristicsMode, C::kHeuristicsBest}})
                 : New(C::kHeuristicsDescriptor, {{C::kHeuristicsGraph, graph},
                                                  {C::kHeuristicsMode, C::kHeuristicsBest},
                                                  {C::kHeuristicsDevice, device.properties}});
  WEFT_RETURN_IF_ERROR(status_);
  int64_t count = 0;
  const auto results = [&](int64_t room, C::Descriptor* configs) {
    return CudnnStatus(library, "asking how to compute a graph",
                       library.get_attribute(heuristics, C::kHeuristicsResults, C::kDescriptorType,
                                             room, &count, configs));
  };
  WEFT_RETURN_IF_ERROR(results(0, nullptr));
  std::vector<C::Descriptor> configs(static_cast<size_t>(count));
  for (C::Descriptor& config : configs) {
    WEFT_ASSIGN_OR_RETURN(config, descriptors_.New(C::kEngineConfigDescriptor));
  }
  WEFT_RETURN_IF_ERROR(results(count, configs.data()));
  Status last = UnavailableError("cuDNN has no engine for this graph");
  for (int64_t i = 0; i < count; ++i) {
    Result<CudnnPlan> plan = PlanOf(configs[static_cast<size_t>(i)], device);
    if (plan.ok()) return plan;
    last = plan.status();
    status_ = OkStatus();
  }
  return last;
}

Result<CudnnPlan> CudnnGraph::PlanOf(C::Descriptor config, const Device& device) {
  C::Descriptor plan =
      device.handle != nullptr
          ? New(C::kPlanDescriptor,
                {{C::kPlanEngineConfig, config}, {C::kPlanHandle, C::kHandleType, &device.handle}})
          : New(C::kPlanDescriptor,
                {{C::kPlanEngineConfig, config}, {C::kPlanDevice, device.properties}});
  WEFT_RETURN_IF_ERROR(status_);
  const C& library = descriptors_.library();
  int64_t bytes = 0, count = 0;
  WEFT_RETURN_IF_ERROR(CudnnStatus(
      library, "asking for a plan's workspace",
      library.get_attribute(plan, C::kPlanWorkspaceSize, C::kInt64Type, 1, &count, &bytes)));
  return CudnnPlan(std::move(descriptors_), plan, bytes);
}

C::DataType CudnnType(DType dtype) {
  if (dtype == DType::kBF16) return C::kBFloat16;
  return dtype == DType::kF16 ? C::kHalf : C::kFloat;
}

}  // namespace weft::kernels::cuda
