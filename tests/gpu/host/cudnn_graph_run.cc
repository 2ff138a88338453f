#include "tests/gpu/host/cudnn_graph_run.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "common/check.h"
#include "common/dtype.h"

namespace weft::host_cuda {
namespace {

using C = kernels::cuda::CudnnLibrary;
using Index = std::array<int64_t, 4>;

// Elements in the order of their indices.
using Values = std::vector<double>;

template <class Fn>
void ForEach(const Index& sizes, Fn&& fn) {
  int64_t at = 0;
  for (int64_t i = 0; i < sizes[0]; ++i) {
    for (int64_t j = 0; j < sizes[1]; ++j) {
      for (int64_t k = 0; k < sizes[2]; ++k) {
        for (int64_t l = 0; l < sizes[3]; ++l) fn(Index{i, j, k, l}, at++);
      }
    }
  }
}

int64_t OffsetOf(const GraphTensor& tensor, const Index& index) {
  int64_t offset = 0;
  for (int d = 0; d < 4; ++d) offset += index[d] * tensor.strides[d];
  return offset;
}

// Where the element is that this one of another tensor goes with: shared by a group of as many.
int64_t Shared(const GraphTensor& tensor, const GraphTensor& by, const Index& index) {
  int64_t at = 0;
  for (int d = 0; d < 4; ++d) {
    at = at * tensor.sizes[d] + index[d] * tensor.sizes[d] / by.sizes[d];
  }
  return at;
}

double Load(const GraphTensor& tensor, const void* from, int64_t at) {
  if (tensor.type == C::kFloat) return static_cast<const float*>(from)[at];
  const uint16_t bits = static_cast<const uint16_t*>(from)[at];
  return tensor.type == C::kBFloat16 ? ToFloat(BFloat16{bits}) : ToFloat(Half{bits});
}

double Rounded(C::DataType type, double value) {
  const auto narrow = static_cast<float>(value);
  if (type == C::kBFloat16) return ToFloat(ToBFloat16(narrow));
  if (type == C::kHalf) return ToFloat(ToHalf(narrow));
  return type == C::kFloat ? narrow : value;
}

void Store(const GraphTensor& tensor, void* to, int64_t at, double value) {
  const auto narrow = static_cast<float>(value);
  if (tensor.type == C::kFloat) {
    static_cast<float*>(to)[at] = narrow;
  } else {
    static_cast<uint16_t*>(to)[at] =
        tensor.type == C::kBFloat16 ? ToBFloat16(narrow).bits : ToHalf(narrow).bits;
  }
}

double Apply(C::Pointwise mode, double x, double b, double where) {
  switch (mode) {
    case C::kAdd:
      return x + b;
    case C::kMul:
      return x * b;
    case C::kDiv:
      return x / b;
    case C::kSub:
      return x - b;
    case C::kExp:
      return std::exp(x);
    case C::kLog:
      return std::log(x);
    case C::kGreater:
      return x > b ? 1 : 0;
    case C::kGreaterOrEqual:
      return x >= b ? 1 : 0;
    case C::kSelect:
      return where != 0 ? x : b;
    case C::kIdentity:
    case C::kIndex:
      break;
  }
  return x;
}

size_t InputsOf(C::Pointwise mode) {
  if (mode == C::kSelect) return 3;
  const bool one = mode == C::kExp || mode == C::kLog || mode == C::kIdentity || mode == C::kIndex;
  return one ? 1 : 2;
}

bool Divides(const GraphTensor& small, const GraphTensor& large, int first, int last) {
  for (int d = first; d < last; ++d) {
    if (large.sizes[d] % small.sizes[d] != 0) return false;
  }
  return true;
}

std::string CheckProduct(const GraphTensor& a, const GraphTensor& b, const GraphTensor& c) {
  if (a.sizes[3] != b.sizes[2] || c.sizes[2] != a.sizes[2] || c.sizes[3] != b.sizes[3]) {
    return "the sizes of a product do not fit";
  }
  if (a.sizes[0] != c.sizes[0] || b.sizes[0] != c.sizes[0] || a.sizes[1] != c.sizes[1] ||
      c.sizes[1] % b.sizes[1] != 0) {
    return "the heads of a product do not fit";
  }
  const auto takes = [](C::DataType type) {
    return type == C::kFloat || type == C::kHalf || type == C::kBFloat16;
  };
  return takes(a.type) && takes(b.type) && takes(c.type) ? "" : "a product of no numbers";
}

std::string CheckPointwise(const GraphOperation& o) {
  if (o.inputs.size() != InputsOf(o.mode)) return "another number of inputs";
  if (o.inputs[0].sizes != o.output.sizes) return "x and y of different sizes";
  for (const GraphTensor& input : o.inputs) {
    for (int d = 0; d < 4; ++d) {
      if (input.sizes[d] != o.output.sizes[d] && input.sizes[d] != 1) return "b does not fit y";
    }
  }
  const bool compares = o.mode == C::kGreater || o.mode == C::kGreaterOrEqual;
  if (compares != (o.output.type == C::kBoolean)) return "a truth value of another type";
  if ((o.mode == C::kIndex) != (o.output.type == C::kInt32)) return "an index of another type";
  if ((o.mode == C::kIndex) != (o.axis >= 0 && o.axis < 4)) return "an axis where none belongs";
  if (o.mode == C::kSelect && o.inputs[2].type != C::kBoolean) return "no truth value to select by";
  return "";
}

// The same elements in the same places: sorted by strides, both have the same sizes.
std::string CheckReshape(const GraphTensor& x, const GraphTensor& y) {
  const auto sorted = [](const GraphTensor& tensor) {
    std::array<std::pair<int64_t, int64_t>, 4> dimensions;
    for (int d = 0; d < 4; ++d) dimensions[d] = {tensor.strides[d], tensor.sizes[d]};
    std::sort(dimensions.begin(), dimensions.end());
    return dimensions;
  };
  return sorted(x) == sorted(y) ? "" : "a reshape to other elements";
}

// The output of an operation of inputs that are all there.
Values Compute(const GraphOperation& o, const std::vector<const Values*>& in) {
  const GraphTensor &x = o.inputs[0], &y = o.output;
  Values out(static_cast<size_t>(y.Count()));
  switch (o.kind) {
    case GraphOperation::kMultiply: {
      const GraphTensor& b = o.inputs[1];
      const int64_t depth = x.sizes[3], columns = b.sizes[3];
      ForEach(y.sizes, [&](const Index& at, int64_t to) {
        const double* left =
            in[0]->data() + ((at[0] * x.sizes[1] + at[1]) * x.sizes[2] + at[2]) * depth;
        const int64_t head = at[1] * b.sizes[1] / y.sizes[1];
        const double* right = in[1]->data() + (at[0] * b.sizes[1] + head) * depth * columns + at[3];
        double sum = 0;
        for (int64_t i = 0; i < depth; ++i) sum += left[i] * right[i * columns];
        out[to] = sum;
      });
      break;
    }
    case GraphOperation::kPointwise:
      ForEach(y.sizes, [&](const Index& at, int64_t to) {
        const auto value = [&](size_t i) {
          return i < in.size() ? (*in[i])[Shared(o.inputs[i], y, at)] : 0.0;
        };
        out[to] = o.mode == C::kIndex ? static_cast<double>(at[o.axis])
                                      : Apply(o.mode, value(0), value(1), value(2));
      });
      break;
    case GraphOperation::kReduce: {
      const bool sums = o.reduction == C::kSum;
      std::fill(out.begin(), out.end(), sums ? 0.0 : -std::numeric_limits<double>::infinity());
      ForEach(x.sizes, [&](const Index& at, int64_t from) {
        double& to = out[Shared(y, x, at)];
        to = sums ? to + (*in[0])[from] : std::max(to, (*in[0])[from]);
      });
      break;
    }
    case GraphOperation::kReshape: {
      std::map<int64_t, double> there;
      ForEach(x.sizes,
              [&](const Index& at, int64_t from) { there[OffsetOf(x, at)] = (*in[0])[from]; });
      ForEach(y.sizes, [&](const Index& at, int64_t to) { out[to] = there.at(OffsetOf(y, at)); });
      break;
    }
  }
  for (double& value : out) value = Rounded(y.type, value);
  return out;
}

}  // namespace

int64_t GraphTensor::ElementBytes() const {
  if (type == C::kBoolean) return 1;
  return type == C::kHalf || type == C::kBFloat16 ? 2 : 4;
}

int64_t GraphTensor::Bytes() const {
  int64_t last = 0;
  for (int d = 0; d < 4; ++d) last += (sizes[d] - 1) * strides[d];
  return (last + 1) * ElementBytes();
}

std::string CheckOperation(const GraphOperation& o) {
  switch (o.kind) {
    case GraphOperation::kMultiply:
      return CheckProduct(o.inputs[0], o.inputs[1], o.output);
    case GraphOperation::kPointwise:
      return CheckPointwise(o);
    case GraphOperation::kReduce:
      return Divides(o.output, o.inputs[0], 0, 4) ? "" : "a reduction to sizes that do not fit";
    case GraphOperation::kReshape:
      return CheckReshape(o.inputs[0], o.output);
  }
  return "";
}

std::string CheckOrder(const std::vector<GraphOperation>& operations) {
  std::set<int64_t> all_written;
  for (const GraphOperation& o : operations) all_written.insert(o.output.id);
  std::set<int64_t> written;
  std::map<int64_t, const GraphTensor*> known;
  for (const GraphOperation& o : operations) {
    std::vector<const GraphTensor*> tensors = {&o.output};
    for (const GraphTensor& input : o.inputs) tensors.push_back(&input);
    for (const GraphTensor* tensor : tensors) {
      const auto [at, is_new] = known.emplace(tensor->id, tensor);
      const GraphTensor& other = *at->second;
      if (!is_new && (other.sizes != tensor->sizes || other.strides != tensor->strides ||
                      other.type != tensor->type)) {
        return "two tensors of one name";
      }
    }
    for (const GraphTensor& input : o.inputs) {
      const bool comes = input.is_virtual || all_written.contains(input.id);
      if (comes && !written.contains(input.id)) return "a tensor is read before it is written";
    }
    if (!written.insert(o.output.id).second) return "a tensor is written twice";
  }
  return "";
}

void RunGraph(const std::vector<GraphOperation>& operations, const std::map<int64_t, void*>& bound,
              const std::map<int64_t, float>& numbers) {
  std::map<int64_t, Values> values;
  const auto read = [&](const GraphTensor& tensor) {
    if (values.contains(tensor.id)) return;
    Values& read_values = values[tensor.id];
    read_values.resize(static_cast<size_t>(tensor.Count()));
    if (tensor.by_value) {
      read_values[0] = numbers.at(tensor.id);
      return;
    }
    const void* from = bound.at(tensor.id);
    ForEach(tensor.sizes, [&](const Index& index, int64_t to) {
      read_values[to] = Load(tensor, from, OffsetOf(tensor, index));
    });
  };
  for (const GraphOperation& o : operations) {
    std::vector<const Values*> inputs;
    for (const GraphTensor& input : o.inputs) read(input);
    for (const GraphTensor& input : o.inputs) inputs.push_back(&values.at(input.id));
    Values out = Compute(o, inputs);
    if (!o.output.is_virtual) {
      void* to = bound.at(o.output.id);
      ForEach(o.output.sizes, [&](const Index& index, int64_t from) {
        Store(o.output, to, OffsetOf(o.output, index), out[from]);
      });
    }
    values[o.output.id] = std::move(out);
  }
}

}  // namespace weft::host_cuda
