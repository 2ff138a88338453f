#include "worker/engine/nn/parameter_set.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "common/glob.h"
#include "common/rng.h"
#include "common/spec/spec_json.h"
#include "kernels/cpu/float_types.h"
#include "kernels/cpu/parallel.h"
#include "worker/engine/nn/parameter_file.h"
#include "worker/engine/nn/parameter_file_iterator.h"
#include "worker/engine/tensor/host_memory_pool.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

constexpr size_t kAlignBytes = 64;

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

// Four numbers of mean 0 and deviation 1 from `block` of the stream.
void Draw(Distribution distribution, const PhiloxKey& key, uint64_t block, float out[4]) {
  constexpr float kCut = 2;
  if (distribution == Distribution::kUniform) {
    const Philox4 words = Philox(key, block);
    for (int i = 0; i < 4; ++i) {
      out[i] = std::sqrt(3.0f) * (2 * UniformFloat(words.v[i]) - 1);
    }
    return;
  }
  Normals(key, block, out);
  if (distribution == Distribution::kNormal) return;
  // Another stream for each further try.
  PhiloxKey again = key;
  while (std::any_of(out, out + 4, [](float v) { return std::fabs(v) > kCut; })) {
    ++again.step;
    float more[4];
    Normals(again, block, more);
    for (int i = 0; i < 4; ++i) {
      if (std::fabs(out[i]) > kCut) out[i] = more[i];
    }
  }
}

// Elements [begin, end) of the logical tensor. `tail` is the first element of the rows with another
// deviation.
template <class T>
void FillRange(const Initializer& initializer, const PhiloxKey& key, int64_t tail, int64_t begin,
               int64_t end, T* data) {
  const auto mean = static_cast<float>(initializer.mean);
  const auto deviation = static_cast<float>(initializer.deviation);
  const auto tail_deviation = static_cast<float>(initializer.deviation * initializer.tail_factor);
  for (int64_t block = begin / 4; 4 * block < end; ++block) {
    float drawn[4];
    Draw(initializer.distribution, key, static_cast<uint64_t>(block), drawn);
    const int64_t last = std::min(4 * block + 4, end);
    for (int64_t i = std::max(4 * block, begin); i < last; ++i) {
      const float d = i < tail ? deviation : tail_deviation;
      data[i - begin] = FromFloat<T>(mean + d * drawn[i - 4 * block]);
    }
  }
}

// The part at `place`, so many elements, of a logical tensor.
template <class T>
void FillRandom(const Initializer& initializer, const PhiloxKey& key, int64_t tail,
                const NamedTensor::Place& place, int64_t elements, T* data) {
  if (initializer.deviation == 0) {
    std::fill(data, data + elements, FromFloat<T>(static_cast<float>(initializer.mean)));
    return;
  }
  struct Run {
    int64_t part, logical, count;
  };
  constexpr int64_t kBlocks = 4096;  // for a thread
  std::vector<Run> short_runs;       // columns of a matrix
  place.ForEachRun(elements, [&](int64_t part, int64_t logical, int64_t count) {
    if (count < 4 * kBlocks) {
      short_runs.push_back({part, logical, count});
      return;
    }
    kernels::cpu::ParallelFor((count + 3) / 4, kBlocks, [&](int64_t first, int64_t last) {
      FillRange(initializer, key, tail, logical + 4 * first, logical + std::min(4 * last, count),
                data + part + 4 * first);
    });
  });
  kernels::cpu::ParallelFor(
      static_cast<int64_t>(short_runs.size()), 16, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          const Run& run = short_runs[static_cast<size_t>(i)];
          FillRange(initializer, key, tail, run.logical, run.logical + run.count, data + run.part);
        }
      });
}

}  // namespace

ParameterSet::ParameterSet() = default;
ParameterSet::~ParameterSet() = default;

int64_t ParameterSet::Register(std::string name, Shape shape, ParameterRole role,
                               ParameterOptions options) {
  Parameter parameter;
  parameter.role = role;
  parameter.bias = options.bias;
  parameter.block = block_;
  parameter.name = std::move(name);
  parameter.padded_rows = std::max(options.padded_rows, shape[0]);
  parameter.shape = shape;
  parameter.shard = std::move(options.shard);
  return Add(std::move(parameter));
}

int64_t ParameterSet::RegisterStack(const std::vector<StackedPart>& parts, const Shape& row) {
  const int64_t first = size();
  for (const StackedPart& part : parts) {
    Parameter parameter;
    parameter.role = part.role;
    parameter.bias = part.bias;
    parameter.block = block_;
    parameter.expert = part.expert;
    parameter.name = part.name;
    parameter.shape = row;
    std::copy_backward(row.dims.begin(), row.dims.end() - 1, parameter.shape.dims.end());
    parameter.shape.dims[0] = part.rows;
    ++parameter.shape.rank;
    parameter.shard = part.shard;
    parameter.padded_rows = part.rows;
    parameter.stacked = size() > first;
    Add(std::move(parameter));
  }
  return first;
}

void ParameterSet::SetStart(int64_t index, const Initializer& initializer,
                            double learning_rate_scale) {
  parameters_[index].initializer = initializer;
  parameters_[index].learning_rate_scale = learning_rate_scale;
}

int64_t ParameterSet::Add(Parameter parameter) {
  WEFT_CHECK(!values_, "parameters are registered before they are allocated");
  parameter.unit = unit_;
  parameters_.push_back(std::move(parameter));
  return size() - 1;
}

void ParameterSet::SetParts(int64_t index, std::vector<int64_t> rows) {
  Parameter& parameter = parameters_[index];
  WEFT_CHECK(std::accumulate(rows.begin(), rows.end(), int64_t{0}) == parameter.shape[0],
             "the parts make up the whole of " + parameter.name);
  parameter.parts = std::move(rows);
}

void ParameterSet::Derive(int64_t index, std::vector<Source> sources) {
  WEFT_CHECK(parameters_[index].trainable(), "what is frozen has no sources");
  has_derived_ = true;
  parameters_[index].first_source = size();
  parameters_[index].sources = std::ssize(sources);
  for (Source& source : sources) {
    Parameter parameter;
    static_cast<ParameterAttributes&>(parameter) = parameters_[index];
    parameter.parts = std::move(source.parts);
    parameter.name = std::move(source.name);
    parameter.shape = source.shape;
    parameter.padded_rows = source.shape[0];
    parameter.initializer = source.initializer;
    parameter.learning_rate_scale = parameters_[index].learning_rate_scale;
    parameter.source_of = index;
    Add(std::move(parameter));
  }
}

Status ParameterSet::OnValues(Context& context, ValuesFrom from) const {
  for (const auto& hook : values_hooks_) WEFT_RETURN_IF_ERROR(hook(context, from));
  return OkStatus();
}

void ParameterSet::StartUnit(int64_t block) {
  ++unit_;
  block_ = block;
  blocks_ = std::max(blocks_, block + 1);
}

std::vector<std::string> ParameterSet::Names() const {
  if (!names_.empty()) return names_;
  std::vector<std::string> names;
  for (const Parameter& parameter : parameters_) names.push_back(parameter.name);
  return names;
}

Status ParameterSet::Freeze(const std::vector<std::string>& patterns) {
  const std::vector<std::string> names = Names();
  for (const std::string& pattern : patterns) {
    for (Parameter& parameter : parameters_) {
      if (GlobMatches(pattern, parameter.name)) parameter.frozen = true;
    }
    const auto matches = [&](const std::string& name) { return GlobMatches(pattern, name); };
    if (std::any_of(names.begin(), names.end(), matches)) continue;
    const std::string nearest = NearestName(pattern, names);
    return InvalidError(
        "model.freeze '" + pattern + "' matches no parameter; hint: " +
        (nearest.empty() ? "names are like " + names.front() : "did you mean '" + nearest + "'?"));
  }
  const auto frozen = [&](const std::string& name) {
    return std::any_of(patterns.begin(), patterns.end(),
                       [&](const std::string& pattern) { return GlobMatches(pattern, name); });
  };
  if (std::all_of(names.begin(), names.end(), frozen)) {
    return InvalidError("model.freeze leaves nothing to train: it matches every parameter");
  }
  return OkStatus();
}

void ParameterSet::SetExpertRank(int64_t rank, int64_t ranks) {
  WEFT_CHECK(!values_, "ranks are known before parameters are allocated");
  expert_rank_ = rank;
  expert_ranks_ = ranks;
  SetStage();
  for (Parameter& parameter : parameters_) {
    parameter.of_shared_expert = parameter.expert >= 0;
  }
}

void ParameterSet::ShareAmong(int64_t ranks, bool place_gradients) {
  WEFT_CHECK(!values_, "ranks are known before parameters are allocated");
  WEFT_CHECK(ranks == 1 || ranks % expert_ranks_ == 0, "as many ranks have each of the experts");
  ranks_ = ranks;
  place_gradients_ = place_gradients;
}

void ParameterSet::KeepOnDevice(const std::vector<int64_t>& units) {
  WEFT_CHECK(offloaded_ && !values_, "what stands on the device is known before it is allocated");
  kept_units_.assign(static_cast<size_t>(this->units()), false);
  for (const int64_t unit : units) kept_units_.at(static_cast<size_t>(unit)) = true;
}

void ParameterSet::PlaceGradients(const Range& range, float* data) {
  for (int64_t i = 0; i < size(); ++i) {
    const int64_t offset = parameters_[i].gradient_offset;
    if (!parameters_[i].trainable() || offset < range.begin || offset >= range.end) continue;
    gradient_data_[i] = data == nullptr ? nullptr : data + (offset - range.begin);
  }
}

Status ParameterSet::Allocate(Context& context, bool with_gradients, DType matrices) {
  stream_ = context.stream;
  gradient_data_.assign(parameters_.size(), nullptr);
  Context below = context;
  if (offloaded_) {
    WEFT_CHECK(context.host != nullptr, "offloaded parameters need a host memory pool");
    below = InHostMemoryPool(context);
  }
  if (values_sharded()) {
    WEFT_CHECK(place_gradients_ && !has_derived_, "gradients of sharded values are placed");
    LayOutRegions(matrices);
    return AllocateShards(below);
  }
  WEFT_CHECK(kept_units_.empty() || (!streamed_ && ranks_ == 1 && !has_derived_),
             "units are kept on the device where the others have copies there");
  LayOutGradients();
  const ValueSizes sizes = LayOutValues(matrices);
  if (offloaded_) WEFT_RETURN_IF_ERROR(AllocateOperands(context));
  if (in_file_) return MakeFile(context);
  const auto allocate = [&](Context& where, size_t bytes, Tensor& values) -> Status {
    WEFT_ASSIGN_OR_RETURN(values, Tensor::New(where, Component::kParameters, DType::kU8,
                                              Shape{static_cast<int64_t>(bytes)}));
    return Clear(stream_, values);
  };
  WEFT_RETURN_IF_ERROR(allocate(below, sizes.bytes, values_));
  if (sizes.kept > 0) WEFT_RETURN_IF_ERROR(allocate(context, sizes.kept, kept_values_));
  return with_gradients && !place_gradients_ ? AllocateGradients(context, below) : OkStatus();
}

Status ParameterSet::AllocateGradients(Context& context, Context& below) {
  const GradientCounts counts = LayOutGradientRuns();
  WEFT_ASSIGN_OR_RETURN(
      gradients_, Tensor::New(below, Component::kGradients, DType::kF32, Shape{counts.elements}));
  WEFT_RETURN_IF_ERROR(Clear(stream_, gradients_));
  if (counts.kept > 0) {
    WEFT_ASSIGN_OR_RETURN(kept_gradients_, Tensor::New(context, Component::kGradients, DType::kF32,
                                                       Shape{counts.kept}));
    WEFT_RETURN_IF_ERROR(Clear(stream_, kept_gradients_));
  }
  PlaceGradientsWhereHeld();
  return OkStatus();
}

void ParameterSet::PlaceGradientsWhereHeld() {
  PlaceGradients({0, gradient_count_}, nullptr);
  for (const GradientRun& run : gradient_runs_) {
    PlaceGradients(run.range, HeldGradients(run.range).As<float>());
  }
}

Tensor ParameterSet::MoveGradients(Tensor memory) {
  std::swap(gradients_, memory);
  PlaceGradients({0, gradient_count_}, gradients_.As<float>());
  return memory;
}

Status ParameterSet::ReserveOperands(Context& context, int64_t unit, bool tables) {
  UnitOperands& operands = unit_operands_[static_cast<size_t>(unit)];
  const UnitSizes& sizes = unit_sizes_[static_cast<size_t>(unit)];
  operands.tables = tables;
  WEFT_ASSIGN_OR_RETURN(operands.memory,
                        Tensor::New(context, Component::kParameters, DType::kU8,
                                    Shape{tables ? sizes.all : sizes.without_tables}));
  return OkStatus();
}

void ParameterSet::BringOperands(Context& context, int64_t unit) const {
  const UnitOperands& operands = unit_operands_[static_cast<size_t>(unit)];
  for (int64_t i = 0; i < size(); ++i) {
    const Parameter& parameter = parameters_[i];
    if (parameter.unit != unit || parameter.operand_offset < 0) continue;
    if (parameter.looked_up() && !operands.tables) continue;
    AwaitUpdated(*context.host, i);
    const TensorView from = padded_value(i);
    context.host->up().Copy(operands.memory.As<uint8_t>() + parameter.operand_offset, from.data,
                            from.Bytes());
  }
}

Status ParameterSet::AllocateOperands(Context& context) {
  if (streamed_) {
    LayOutUnitOperands();
    return OkStatus();
  }
  size_t bytes = 0;
  for (Parameter& parameter : parameters_) {
    if (!ReadDirectly(parameter) || IsKept(static_cast<size_t>(parameter.unit))) continue;
    if (!parameter.stacked) bytes = (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
    parameter.operand_offset = static_cast<int64_t>(bytes);
    bytes += static_cast<size_t>(parameter.StoredElements()) * DTypeSize(parameter.dtype);
  }
  WEFT_ASSIGN_OR_RETURN(operands_, Tensor::New(context, Component::kParameters, DType::kU8,
                                               Shape{static_cast<int64_t>(bytes)}));
  return Clear(stream_, operands_);
}

void ParameterSet::AwaitUpdated(HostMemoryPool& host, int64_t index) const {
  if (parameters_[index].trainable()) host.updated().WaitFor(index);
}

void ParameterSet::UploadOperands(Context& context, int64_t unit) const {
  for (int64_t i = 0; i < size(); ++i) {
    if (parameters_[i].operand_offset < 0 || parameters_[i].unit != unit) continue;
    AwaitUpdated(*context.host, i);
    const TensorView from = value(i);
    context.host->up().Copy(operand(i).data, from.data, from.Bytes());
  }
}

Status ParameterSet::Initialize(uint64_t seed) {
  std::optional<ParameterFileIterator> walk;
  if (file_ != nullptr) {
    walk.emplace(file_.get(), ParameterFileIterator::What{
                                  .values = true, .reads_values = false, .changes_values = true});
  }
  for (int64_t i = 0; i < size(); ++i) {
    if (walk) WEFT_RETURN_IF_ERROR(walk->MoveTo(parameters_[i].unit));
    const PhiloxKey key{seed, 0, SiteHash(parameters_[i].name.c_str())};
    const Initializer& initializer = parameters_[i].initializer;
    const HeldValue held = held_value(i);
    const TensorView& view = held.view;
    if (view.shape.Elements() == 0) continue;
    const Shape whole = parameters_[i].logical_shape();
    const NamedTensor::Place place{whole, held.first, parameters_[i].shard};
    const int64_t count = whole.Elements();
    const int64_t tail = count - initializer.tail_rows * (count / whole[0]);
    WEFT_RETURN_IF_ERROR(FillOnHost(stream_, view, [&](const TensorView& host) {
      kernels::cpu::WithFloatType(view.dtype, [&]<class T>() {
        FillRandom(initializer, key, tail, place, view.shape.Elements(), host.As<T>());
      });
    }));
  }
  if (walk) return walk->Finish();
  Context context;
  context.stream = stream_;
  return OnValues(context, ValuesFrom::kDrawn);
}

Result<int64_t> ParameterSet::Find(std::string_view name) const {
  for (int64_t i = 0; i < size(); ++i) {
    if (parameters_[i].name == name) return i;
  }
  return NotFoundError("the model has no parameter '" + std::string(name) + "'");
}

int64_t ParameterSet::ElementCount() const {
  int64_t count = 0;
  for (const Parameter& parameter : parameters_) {
    if (parameter.source_of >= 0 || !parameter.counted) continue;
    if (expert_rank_ > 0 && !parameter.of_shared_expert) continue;
    count += parameter.logical_shape().Elements();
  }
  return count;
}

ParameterSet::Range ParameterSet::GradientRange(int64_t index) const {
  Range range{parameters_[index].gradient_offset, gradient_count_};
  for (int64_t next = index + 1; next < size(); ++next) {
    if (!parameters_[next].trainable()) continue;
    range.end = parameters_[next].gradient_offset;
    break;
  }
  return range;
}

std::vector<NamedTensor> ParameterSet::NamedValues() const {
  std::vector<NamedTensor> tensors;
  for (int64_t i = 0; i < size(); ++i) {
    if (parameters_[i].derived()) continue;
    const HeldValue held = held_value(i);
    tensors.push_back({.name = parameters_[i].name, .view = held.view, .parameter = i});
    if (file_ != nullptr) tensors.back().stored = file_->Stored(i);
    if (values_sharded()) {
      tensors.back().part = {.whole = parameters_[i].shape, .first = held.first};
    }
  }
  return tensors;
}

ParameterSet::HeldValue ParameterSet::held_value(int64_t index) const {
  if (!values_sharded()) return {0, value(index)};
  const auto begin = static_cast<int64_t>(parameters_[index].value_offset);
  const int64_t end = begin + parameters_[index].shape.Elements();
  const Region& region = RegionOf(index);
  const Range own = OwnOf(region);
  const int64_t first = std::clamp(own.begin, begin, end);
  const int64_t count = std::clamp(own.end, begin, end) - first;
  auto* data = static_cast<char*>(region.held.data);
  if (data != nullptr && count > 0) {
    data += static_cast<size_t>(first - own.begin) * DTypeSize(region.dtype);
  }
  return {first - begin, {data, region.dtype, {count}, region.held.device}};
}

void ParameterSet::PlaceRegion(const Region& region, const TensorView& values) {
  for (int64_t index : region.parameters) {
    placed_[index] = values;
    if (!values) continue;
    placed_[index].data =
        static_cast<char*>(values.data) +
        (parameters_[index].value_offset - static_cast<size_t>(region.elements.begin)) *
            DTypeSize(values.dtype);
  }
}

std::vector<TensorView> ParameterSet::DifferentiatedGradients() const {
  std::vector<TensorView> views(parameters_.size());
  for (int64_t i = 0; i < size(); ++i) {
    if (parameters_[i].differentiated()) views[i] = gradient(i);
  }
  return views;
}

TensorView ParameterSet::differentiated_gradients() const {
  return {gradients_.As<float>(), DType::kF32, {differentiated_count_}, gradients_.view().device};
}

Shape ParameterSet::ShapeOf(int64_t index, int64_t count, bool padded) const {
  Shape shape = parameters_[index].shape;
  if (padded) shape.dims[0] = parameters_[index].padded_rows;
  for (int64_t i = 1; i < count; ++i) shape.dims[0] += parameters_[index + i].shape[0];
  return shape;
}

TensorView ParameterSet::ValueView(int64_t index, int64_t count, bool padded) const {
  const Parameter& parameter = parameters_[index];
  if (values_sharded()) {
    WEFT_CHECK(placed_[index], "read before it was brought: " + parameter.name);
    return {placed_[index].data, placed_[index].dtype, ShapeOf(index, count, padded),
            placed_[index].device};
  }
  if (file_ != nullptr) {
    std::byte* const unit = unit_values_[static_cast<size_t>(parameter.unit)];
    return {unit == nullptr ? nullptr : unit + OffsetInUnit(index), parameter.dtype,
            ShapeOf(index, count, padded)};
  }
  const Tensor& values = IsKept(static_cast<size_t>(parameter.unit)) ? kept_values_ : values_;
  return {values.As<uint8_t>() + parameter.value_offset, parameter.dtype,
          ShapeOf(index, count, padded), values.view().device};
}

TensorView ParameterSet::OperandView(int64_t index, int64_t count, bool padded) const {
  TensorView view = ValueView(index, count, padded);
  if (!on_host(index) || values_sharded()) return view;
  const Parameter& parameter = parameters_[index];
  WEFT_CHECK(parameter.operand_offset >= 0, "only packed copies of it are on the device");
  const Tensor& memory =
      streamed_ ? unit_operands_[static_cast<size_t>(parameter.unit)].memory : operands_;
  WEFT_CHECK(memory, "read before it was brought: " + parameter.name);
  view.data = memory.As<uint8_t>() + parameter.operand_offset;
  view.device = memory.view().device;
  return view;
}

TensorView ParameterSet::GradientView(int64_t index, int64_t count, bool padded) const {
  if (gradient_data_.empty() || gradient_data_[index] == nullptr) return {};
  const float* const data = gradient_data_[index];
  // Offloaded ones are on the device while they are made.
  const bool in_buffer = gradients_ && data >= gradients_.As<float>() &&
                         data < gradients_.As<float>() + gradient_count_;
  return {gradient_data_[index], DType::kF32, ShapeOf(index, count, padded),
          in_buffer ? gradients_.view().device : stream_.device};
}

}  // namespace weft::engine
