#include "tests/gpu/host/cudnn.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/host/cudnn_graph_run.h"
#include "tests/gpu/host/device_memory.h"
#include "tests/gpu/host/streams.h"

// NOLINTBEGIN(readability-identifier-naming): the name is cuDNN's.
struct cudnnContext {
  CUstream_st* stream = nullptr;
};
// NOLINTEND(readability-identifier-naming)

namespace weft::host_cuda {
namespace {

using C = kernels::cuda::CudnnLibrary;

enum Status { kSuccess = 0, kBadParam = 2000 };

thread_local std::string problem;
size_t version = 91900;
CudnnCalls calls;
int64_t alive = 0;

int Bad(std::string why) {
  problem = std::move(why);
  return kBadParam;
}

/// A descriptor of any type: its attributes as bytes, and what it is when it is ended.
struct Descriptor {
  struct Value {
    int type;
    int64_t count;
    std::string bytes;
  };
  explicit Descriptor(int its_type) : type(its_type) { ++alive; }
  ~Descriptor() { --alive; }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int type;
  bool ended = false;
  std::map<int, Value> values;
  // By type.
  GraphTensor tensor;
  GraphOperation operation;
  std::vector<GraphOperation> operations;
  C::Handle handle = nullptr;
  int64_t workspace = 0;
};

Descriptor* Of(C::Descriptor descriptor) {
  return static_cast<Descriptor*>(descriptor);
}

size_t SizeOf(int type) {
  switch (type) {
    case C::kBooleanType:
      return sizeof(bool);
    case C::kInt64Type:
    case C::kPointerType:
    case C::kHandleType:
    case C::kDescriptorType:
      return 8;
    default:
      return sizeof(int);
  }
}

// What an attribute holds, and of how many values.
struct Rule {
  int type;
  int64_t least;
  int64_t most;
  bool demanded;
};

using Rules = std::map<int, Rule>;

const Rules& RulesOf(int type) {
  constexpr int64_t kMany = 1000;
  static const Rule one_descriptor = {C::kDescriptorType, 1, 1, true};
  static const Rule maybe_descriptor = {C::kDescriptorType, 1, 1, false};
  static const Rule data_type = {C::kDataTypeType, 1, 1, true};
  static const std::map<int, Rules> all = {
      {C::kTensorDescriptor,
       {{C::kTensorDataType, data_type},
        {C::kTensorDimensions, {C::kInt64Type, 4, 4, true}},
        {C::kTensorStrides, {C::kInt64Type, 4, 4, true}},
        {C::kTensorId, {C::kInt64Type, 1, 1, true}},
        {C::kTensorAlignment, {C::kInt64Type, 1, 1, true}},
        {C::kTensorIsVirtual, {C::kBooleanType, 1, 1, false}},
        {C::kTensorIsByValue, {C::kBooleanType, 1, 1, false}}}},
      {C::kPointwiseDescriptor,
       {{C::kPointwiseMode, {C::kPointwiseModeType, 1, 1, true}},
        {C::kPointwiseComputeType, data_type},
        {C::kPointwiseAxis, {C::kInt64Type, 1, 1, false}}}},
      {C::kPointwiseOperation,
       {{C::kPointwiseOperationDescriptor, one_descriptor},
        {C::kPointwiseOperationX, one_descriptor},
        {C::kPointwiseOperationB, maybe_descriptor},
        {C::kPointwiseOperationT, maybe_descriptor},
        {C::kPointwiseOperationY, one_descriptor}}},
      {C::kMatmulDescriptor, {{C::kMatmulComputeType, data_type}}},
      {C::kMatmulOperation,
       {{C::kMatmulOperationDescriptor, one_descriptor},
        {C::kMatmulOperationA, one_descriptor},
        {C::kMatmulOperationB, one_descriptor},
        {C::kMatmulOperationC, one_descriptor}}},
      {C::kReductionDescriptor,
       {{C::kReductionOperator, {C::kReductionOperatorType, 1, 1, true}},
        {C::kReductionComputeType, data_type}}},
      {C::kReductionOperation,
       {{C::kReductionOperationDescriptor, one_descriptor},
        {C::kReductionOperationX, one_descriptor},
        {C::kReductionOperationY, one_descriptor}}},
      {C::kReshapeOperation,
       {{C::kReshapeOperationX, one_descriptor}, {C::kReshapeOperationY, one_descriptor}}},
      {C::kGraphDescriptor,
       {{C::kGraphHandle, {C::kHandleType, 1, 1, true}},
        {C::kGraphOperations, {C::kDescriptorType, 1, kMany, true}}}},
      {C::kHeuristicsDescriptor,
       {{C::kHeuristicsGraph, one_descriptor},
        {C::kHeuristicsMode, {C::kHeuristicsModeType, 1, 1, true}}}},
      {C::kEngineConfigDescriptor, {}},
      {C::kPlanDescriptor,
       {{C::kPlanHandle, {C::kHandleType, 1, 1, true}}, {C::kPlanEngineConfig, one_descriptor}}},
      {C::kVariantPackDescriptor,
       {{C::kVariantPackIds, {C::kInt64Type, 1, kMany, true}},
        {C::kVariantPackPointers, {C::kPointerType, 1, kMany, true}},
        {C::kVariantPackWorkspace, {C::kPointerType, 1, 1, true}}}}};
  static const Rules none;
  const auto found = all.find(type);
  return found == all.end() ? none : found->second;
}

template <class T>
std::vector<T> ValuesOf(const Descriptor& descriptor, int name) {
  const auto found = descriptor.values.find(name);
  if (found == descriptor.values.end()) return {};
  std::vector<T> values(static_cast<size_t>(found->second.count));
  std::memcpy(values.data(), found->second.bytes.data(), found->second.bytes.size());
  return values;
}

template <class T>
T ValueOf(const Descriptor& descriptor, int name, T otherwise = {}) {
  const auto found = descriptor.values.find(name);
  if (found == descriptor.values.end()) return otherwise;
  T value;
  std::memcpy(&value, found->second.bytes.data(), SizeOf(found->second.type));
  return value;
}

/// The descriptor that an attribute names; nullptr where it is of another type or not ended.
Descriptor* Named(const Descriptor& descriptor, int name, int type) {
  auto* const named = Of(ValueOf<C::Descriptor>(descriptor, name, nullptr));
  return named != nullptr && named->type == type && named->ended ? named : nullptr;
}

int EndTensor(Descriptor& d) {
  GraphTensor& t = d.tensor;
  t.id = ValueOf<int64_t>(d, C::kTensorId);
  t.type = static_cast<C::DataType>(ValueOf<int>(d, C::kTensorDataType));
  const auto sizes = ValuesOf<int64_t>(d, C::kTensorDimensions);
  const auto strides = ValuesOf<int64_t>(d, C::kTensorStrides);
  std::copy(sizes.begin(), sizes.end(), t.sizes.begin());
  std::copy(strides.begin(), strides.end(), t.strides.begin());
  t.alignment = ValueOf<int64_t>(d, C::kTensorAlignment);
  t.is_virtual = ValueOf<bool>(d, C::kTensorIsVirtual, false);
  t.by_value = ValueOf<bool>(d, C::kTensorIsByValue, false);
  if (t.id == 0) return Bad("a tensor named 0");
  if (t.is_virtual && t.by_value) return Bad("a virtual number");
  if (t.by_value && (t.Count() != 1 || t.type != C::kFloat)) return Bad("a number of many");
  if (t.alignment != 16) return Bad("tensors of attention are aligned to 16 bytes");
  for (int i = 0; i < 4; ++i) {
    if (t.sizes[i] < 1 || t.strides[i] < 1) return Bad("a size or a stride below 1");
  }
  const bool memory = !t.is_virtual && !t.by_value;
  if (memory && t.ElementBytes() == 2) {
    // The library does not look, and its kernels read 16 bytes at a time.
    const auto odd = std::count_if(t.strides.begin(), t.strides.end(),
                                   [](int64_t stride) { return stride != 1 && stride % 8 != 0; });
    if (odd > 0) return Bad("rows that are not aligned to 16 bytes");
  }
  return kSuccess;
}

int EndOperation(Descriptor& d) {
  std::vector<int> inputs;
  int output = 0, how = 0, how_type = 0;
  GraphOperation& o = d.operation;
  if (d.type == C::kMatmulOperation) {
    o.kind = GraphOperation::kMultiply;
    inputs = {C::kMatmulOperationA, C::kMatmulOperationB};
    output = C::kMatmulOperationC;
    how = C::kMatmulOperationDescriptor;
    how_type = C::kMatmulDescriptor;
  } else if (d.type == C::kPointwiseOperation) {
    o.kind = GraphOperation::kPointwise;
    inputs = {C::kPointwiseOperationX, C::kPointwiseOperationB, C::kPointwiseOperationT};
    output = C::kPointwiseOperationY;
    how = C::kPointwiseOperationDescriptor;
    how_type = C::kPointwiseDescriptor;
  } else if (d.type == C::kReductionOperation) {
    o.kind = GraphOperation::kReduce;
    inputs = {C::kReductionOperationX};
    output = C::kReductionOperationY;
    how = C::kReductionOperationDescriptor;
    how_type = C::kReductionDescriptor;
  } else {
    o.kind = GraphOperation::kReshape;
    inputs = {C::kReshapeOperationX};
    output = C::kReshapeOperationY;
  }
  if (how != 0) {
    const Descriptor* described = Named(d, how, how_type);
    if (described == nullptr) return Bad("an operation that is not described");
    o.mode = static_cast<C::Pointwise>(ValueOf<int>(*described, C::kPointwiseMode));
    o.reduction = static_cast<C::Reduction>(ValueOf<int>(*described, C::kReductionOperator));
    o.axis = ValueOf<int64_t>(*described, C::kPointwiseAxis, -1);
  }
  for (int name : inputs) {
    if (!d.values.contains(name)) continue;
    const Descriptor* tensor = Named(d, name, C::kTensorDescriptor);
    if (tensor == nullptr) return Bad("an input that is no tensor, or not ended");
    o.inputs.push_back(tensor->tensor);
  }
  const Descriptor* to = Named(d, output, C::kTensorDescriptor);
  if (to == nullptr) return Bad("an output that is no tensor, or not ended");
  o.output = to->tensor;
  std::string wrong = CheckOperation(o);
  return wrong.empty() ? kSuccess : Bad(std::move(wrong));
}

int EndGraph(Descriptor& d) {
  for (C::Descriptor each : ValuesOf<C::Descriptor>(d, C::kGraphOperations)) {
    const Descriptor* operation = Of(each);
    if (operation == nullptr || !operation->ended || operation->operation.inputs.empty()) {
      return Bad("a graph of something else than operations");
    }
    d.operations.push_back(operation->operation);
  }
  d.handle = ValueOf<C::Handle>(d, C::kGraphHandle);
  std::string wrong = CheckOrder(d.operations);
  return wrong.empty() ? kSuccess : Bad(std::move(wrong));
}

int EndPlan(Descriptor& d) {
  // It compiles kernels and loads them, and may take memory.
  if (std::string refused = RefuseInCapture("cuDNN makes a plan"); !refused.empty()) {
    return Bad(std::move(refused));
  }
  const Descriptor* config = Named(d, C::kPlanEngineConfig, C::kEngineConfigDescriptor);
  if (config == nullptr) return Bad("a plan of no configuration");
  d.handle = ValueOf<C::Handle>(d, C::kPlanHandle);
  if (d.handle == nullptr || d.handle != config->handle) return Bad("a plan of another handle");
  d.operations = config->operations;
  // Some workspace, of a size that the graph decides.
  d.workspace = 16 * (1 + d.operations.front().output.Count() % 7);
  ++calls.plans;
  return kSuccess;
}

int EndVariantPack(Descriptor& d) {
  const auto ids = ValuesOf<int64_t>(d, C::kVariantPackIds);
  if (ids.size() != ValuesOf<void*>(d, C::kVariantPackPointers).size()) {
    return Bad("not as many pointers as names");
  }
  return std::set<int64_t>(ids.begin(), ids.end()).size() == ids.size() ? kSuccess
                                                                        : Bad("a name twice");
}

size_t GetVersion() {
  return version;
}

const char* GetErrorString(int status) {
  return status == kSuccess ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_BAD_PARAM";
}

void GetLastError(char* message, size_t bytes) {
  const size_t length = std::min(problem.size(), bytes - 1);
  std::memcpy(message, problem.data(), length);
  message[length] = 0;
}

int Create(C::Handle* handle) {
  *handle = new cudnnContext;
  return kSuccess;
}

int Destroy(C::Handle handle) {
  delete handle;
  return kSuccess;
}

int SetStream(C::Handle handle, CUstream_st* stream) {
  handle->stream = stream;
  return kSuccess;
}

int CreateDescriptor(int type, C::Descriptor* descriptor) {
  if (RulesOf(type).empty() && type != C::kEngineConfigDescriptor) {
    return Bad("a descriptor of an unknown type");
  }
  *descriptor = new Descriptor(type);
  return kSuccess;
}

int DestroyDescriptor(C::Descriptor descriptor) {
  delete Of(descriptor);
  return kSuccess;
}

int SetAttribute(C::Descriptor descriptor, int name, int type, int64_t count, const void* values) {
  Descriptor& d = *Of(descriptor);
  if (d.ended) return Bad("an attribute of a descriptor that was ended");
  const Rules& rules = RulesOf(d.type);
  const auto rule = rules.find(name);
  if (rule == rules.end()) return Bad("an attribute that the descriptor does not have");
  if (rule->second.type != type) return Bad("an attribute of another type");
  if (count < rule->second.least || count > rule->second.most || values == nullptr) {
    return Bad("another number of values");
  }
  d.values[name] = {
      type, count,
      std::string(static_cast<const char*>(values), static_cast<size_t>(count) * SizeOf(type))};
  return kSuccess;
}

int Finalize(C::Descriptor descriptor) {
  Descriptor& d = *Of(descriptor);
  if (d.ended) return Bad("ended twice");
  for (const auto& [name, rule] : RulesOf(d.type)) {
    if (rule.demanded && !d.values.contains(name)) {
      return Bad("attribute " + std::to_string(name) + " is missing");
    }
  }
  int status = kSuccess;
  switch (d.type) {
    case C::kTensorDescriptor:
      status = EndTensor(d);
      break;
    case C::kMatmulOperation:
    case C::kPointwiseOperation:
    case C::kReductionOperation:
    case C::kReshapeOperation:
      status = EndOperation(d);
      break;
    case C::kGraphDescriptor:
      status = EndGraph(d);
      break;
    case C::kHeuristicsDescriptor:
      if (Named(d, C::kHeuristicsGraph, C::kGraphDescriptor) == nullptr) {
        status = Bad("heuristics of no graph");
      }
      break;
    case C::kPlanDescriptor:
      status = EndPlan(d);
      break;
    case C::kVariantPackDescriptor:
      status = EndVariantPack(d);
      break;
    default:
      break;
  }
  d.ended = status == kSuccess;
  return status;
}

int GetAttribute(C::Descriptor descriptor, int name, int type, int64_t room, int64_t* count,
                 void* values) {
  const Descriptor& d = *Of(descriptor);
  if (!d.ended) return Bad("an attribute of what is not ended");
  *count = 1;
  if (d.type == C::kPlanDescriptor && name == C::kPlanWorkspaceSize && type == C::kInt64Type) {
    if (room < 1) return Bad("no room");
    std::memcpy(values, &d.workspace, sizeof d.workspace);
    return kSuccess;
  }
  if (d.type != C::kHeuristicsDescriptor || name != C::kHeuristicsResults ||
      type != C::kDescriptorType) {
    return Bad("an attribute that cannot be read");
  }
  if (room == 0) return kSuccess;
  Descriptor* const config = Of(*static_cast<C::Descriptor*>(values));
  if (config == nullptr || config->type != C::kEngineConfigDescriptor) {
    return Bad("results into what are no configurations");
  }
  const Descriptor* graph = Named(d, C::kHeuristicsGraph, C::kGraphDescriptor);
  config->operations = graph->operations;
  config->handle = graph->handle;
  config->ended = true;
  return kSuccess;
}

struct Range {
  uintptr_t begin, end;
  bool Meets(const Range& o) const { return begin < o.end && o.begin < end; }
};
Range RangeOf(const void* at, int64_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(at);
  return {begin, begin + static_cast<uintptr_t>(bytes)};
}

int Execute(C::Handle handle, C::Descriptor plan_descriptor, C::Descriptor pack_descriptor) {
  const Descriptor &plan = *Of(plan_descriptor), &pack = *Of(pack_descriptor);
  if (plan.type != C::kPlanDescriptor || !plan.ended || pack.type != C::kVariantPackDescriptor ||
      !pack.ended) {
    return Bad("no plan, or no tensors");
  }
  if (handle == nullptr || handle != plan.handle || handle->stream == nullptr) {
    return Bad("another handle, or one without a stream");
  }
  const auto ids = ValuesOf<int64_t>(pack, C::kVariantPackIds);
  const auto pointers = ValuesOf<void*>(pack, C::kVariantPackPointers);
  void* const workspace = ValueOf<void*>(pack, C::kVariantPackWorkspace);
  if (!IsDeviceMemory(workspace, static_cast<size_t>(plan.workspace)) ||
      reinterpret_cast<uintptr_t>(workspace) % 256 != 0) {
    return Bad("a workspace that is missing, too small or not aligned");
  }
  std::map<int64_t, const GraphTensor*> wanted;
  for (const GraphOperation& o : plan.operations) {
    for (const GraphTensor& input : o.inputs) wanted[input.id] = &input;
    wanted[o.output.id] = &o.output;
  }
  std::erase_if(wanted, [](const auto& tensor) { return tensor.second->is_virtual; });
  if (wanted.size() != ids.size()) return Bad("other tensors than the graph has");
  std::map<int64_t, void*> bound;
  std::map<int64_t, float> numbers;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto found = wanted.find(ids[i]);
    if (found == wanted.end()) return Bad("a tensor that the graph does not have");
    const GraphTensor& tensor = *found->second;
    if (pointers[i] == nullptr) return Bad("a null pointer");
    if (tensor.by_value) {
      numbers[tensor.id] = *static_cast<const float*>(pointers[i]);
      continue;
    }
    const auto bytes = static_cast<size_t>(tensor.Bytes());
    if (!IsDeviceMemory(pointers[i], bytes)) return Bad("a tensor outside device memory");
    if (reinterpret_cast<uintptr_t>(pointers[i]) % 16 != 0) return Bad("a tensor not aligned");
    bound[tensor.id] = pointers[i];
    if (RangeOf(pointers[i], tensor.Bytes()).Meets(RangeOf(workspace, plan.workspace))) {
      return Bad("a tensor overlaps the workspace");
    }
  }
  ++calls.runs;
  const std::string failed =
      Enqueue(handle->stream, [operations = plan.operations, bound, numbers, workspace,
                               bytes = static_cast<size_t>(plan.workspace)] {
        std::memset(workspace, 0xff, bytes);
        RunGraph(operations, bound, numbers);
        return std::string();
      });
  return failed.empty() ? kSuccess : Bad(failed);
}

}  // namespace

CudnnCalls CountCudnnCalls() {
  return calls;
}

size_t SetCudnnVersion(size_t its_version) {
  return std::exchange(version, its_version);
}

int64_t CudnnDescriptorsAlive() {
  return alive;
}

}  // namespace weft::host_cuda

namespace weft::kernels::cuda {

Result<const CudnnLibrary*> LoadCudnn() {
  namespace host = weft::host_cuda;
  static const CudnnLibrary library = {.get_version = host::GetVersion,
                                       .get_error_string = host::GetErrorString,
                                       .get_last_error = host::GetLastError,
                                       .create = host::Create,
                                       .destroy = host::Destroy,
                                       .set_stream = host::SetStream,
                                       .create_descriptor = host::CreateDescriptor,
                                       .destroy_descriptor = host::DestroyDescriptor,
                                       .finalize = host::Finalize,
                                       .set_attribute = host::SetAttribute,
                                       .get_attribute = host::GetAttribute,
                                       .execute = host::Execute};
  if (host::version == 0) return UnavailableError("loading libcudnn.so.9: not here");
  return &library;
}

}  // namespace weft::kernels::cuda
