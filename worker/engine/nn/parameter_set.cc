#include "worker/engine/nn/parameter_set.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "common/rng.h"
#include "kernels/cpu/parallel.h"

namespace weft::engine {
namespace {

constexpr int64_t kAlignElements = 16;  // 64 bytes

// Four normals of one Philox block, by Box and Muller.
void Normals(const PhiloxKey& key, uint64_t block, float out[4]) {
  const Philox4 words = Philox(key, block);
  for (int pair = 0; pair < 2; ++pair) {
    const float uniform = (static_cast<float>(words.v[2 * pair] >> 8) + 0.5f) * 0x1.0p-24f;
    const float radius = std::sqrt(-2.0f * std::log(uniform));
    const float angle = 6.2831853f * UniformFloat(words.v[2 * pair + 1]);
    out[2 * pair] = radius * std::cos(angle);
    out[2 * pair + 1] = radius * std::sin(angle);
  }
}

void FillNormal(const Initializer& initializer, const PhiloxKey& key, float* data, int64_t count) {
  const auto mean = static_cast<float>(initializer.mean);
  const auto deviation = static_cast<float>(initializer.deviation);
  if (deviation == 0) {
    std::fill(data, data + count, mean);
    return;
  }
  kernels::cpu::ParallelFor((count + 3) / 4, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      float normals[4];
      Normals(key, static_cast<uint64_t>(block), normals);
      const int64_t left = std::min<int64_t>(4, count - 4 * block);
      for (int64_t i = 0; i < left; ++i) data[4 * block + i] = mean + deviation * normals[i];
    }
  });
}

}  // namespace

int64_t ParameterSet::Register(std::string name, Shape shape, Initializer initializer,
                               int64_t padded_rows) {
  WEFT_CHECK(!values_, "parameters are registered before they are allocated");
  Parameter parameter{std::move(name), shape, std::max(padded_rows, shape[0]), initializer,
                      flat_count_};
  const int64_t elements = shape.Elements() / shape[0] * parameter.padded_rows;
  flat_count_ += (elements + kAlignElements - 1) / kAlignElements * kAlignElements;
  parameters_.push_back(std::move(parameter));
  return size() - 1;
}

Status ParameterSet::Allocate(Context& context, bool with_gradients) {
  const Shape shape = {flat_count_};
  WEFT_ASSIGN_OR_RETURN(values_, Tensor::New(context, Component::kParameters, DType::kF32, shape));
  std::memset(values_.As<float>(), 0, values_.Bytes());
  if (!with_gradients) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(gradients_,
                        Tensor::New(context, Component::kGradients, DType::kF32, shape));
  std::memset(gradients_.As<float>(), 0, gradients_.Bytes());
  return OkStatus();
}

void ParameterSet::Initialize(uint64_t seed) {
  for (int64_t i = 0; i < size(); ++i) {
    const PhiloxKey key{seed, 0, SiteHash(parameters_[i].name.c_str())};
    const TensorView view = value(i);
    FillNormal(parameters_[i].initializer, key, view.As<float>(), view.shape.Elements());
  }
}

Result<int64_t> ParameterSet::Find(std::string_view name) const {
  for (int64_t i = 0; i < size(); ++i) {
    if (parameters_[i].name == name) return i;
  }
  return NotFoundError("the model has no parameter '" + std::string(name) + "'");
}

int64_t ParameterSet::ElementCount() const {
  int64_t count = 0;
  for (const Parameter& parameter : parameters_) count += parameter.shape.Elements();
  return count;
}

ParameterSet::Range ParameterSet::FlatRange(int64_t index) const {
  return {parameters_[index].offset,
          index + 1 < size() ? parameters_[index + 1].offset : flat_count_};
}

std::vector<NamedTensor> ParameterSet::NamedValues() const {
  std::vector<NamedTensor> tensors;
  for (int64_t i = 0; i < size(); ++i) tensors.push_back({parameters_[i].name, value(i)});
  return tensors;
}

TensorView ParameterSet::View(const Tensor& flat, int64_t index, bool padded) const {
  const Parameter& parameter = parameters_[index];
  Shape shape = parameter.shape;
  if (padded) shape.dims[0] = parameter.padded_rows;
  return {flat.As<float>() + parameter.offset, DType::kF32, shape, flat.view().device};
}

}  // namespace weft::engine
