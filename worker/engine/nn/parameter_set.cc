#include "worker/engine/nn/parameter_set.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "common/number.h"
#include "common/rng.h"
#include "kernels/cpu/float_types.h"
#include "kernels/cpu/parallel.h"
#include "kernels/quantize_4bit/quantize_4bit.h"
#include "worker/engine/nn/parameter_file.h"
#include "worker/engine/nn/parameter_file_iterator.h"
#include "worker/engine/nn/parameter_part.h"
#include "worker/engine/nn/word_tensors.h"
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

// The part at `place`, this many elements, of a logical tensor.
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

/// What a parameter is drawn from.
struct Drawing {
  const Initializer& initializer;
  PhiloxKey key;
  Shape whole;
  int64_t tail;  ///< Elements before its last rows, which have another deviation.

  Drawing(const Parameter& parameter, uint64_t seed)
      : initializer(parameter.initializer), whole(parameter.logical_shape()) {
    const std::string& name = initializer.drawn_as.empty() ? parameter.name : initializer.drawn_as;
    key = {seed, 0, SiteHash(name.c_str())};
    const int64_t count = whole.Elements();
    tail = count - initializer.tail_rows * (count / whole[0]);
  }

  /// The part at `place`, this many elements.
  template <class T>
  void Fill(const NamedTensor::Place& place, int64_t elements, T* data) const {
    FillRandom(initializer, key, tail, place, elements, data);
  }
};

}  // namespace

ParameterSet::ParameterSet() = default;
ParameterSet::~ParameterSet() = default;

Status ParameterSet::OnValues(Context& context, ValuesFrom from) const {
  for (const auto& hook : values_hooks_) WEFT_RETURN_IF_ERROR(hook(context, from));
  return OkStatus();
}

void ParameterSet::ShareAmong(int64_t ranks, bool place_gradients) {
  WEFT_CHECK(!values_, "ranks are known before parameters are allocated");
  WEFT_CHECK(ranks == 1 || ranks % expert_ranks() == 0, "as many ranks have each of the experts");
  ranks_ = ranks;
  place_gradients_ = place_gradients;
}

void ParameterSet::KeepOnDevice(const std::vector<int64_t>& units) {
  WEFT_CHECK(offloaded_ && !values_, "what stays on the device is known before it is allocated");
  device_updated_units_.assign(static_cast<size_t>(this->units()), false);
  for (const int64_t unit : units) {
    WEFT_CHECK(unit >= 0 && unit < this->units(), "a unit of the model (CheckOffload)");
    device_updated_units_[static_cast<size_t>(unit)] = true;
  }
}

void ParameterSet::ChooseKept() {
  if (device_updated_units_.empty() && !(offloaded_ && keeps_frozen_)) return;
  kept_.assign(static_cast<size_t>(size()), false);
  for (int64_t first = 0, end = 0; first < size(); first = end) {
    end = first + 1;
    while (end < size() && (*this)[end].stacked) ++end;
    const auto unit = static_cast<size_t>((*this)[first].unit);
    const bool frozen = std::none_of(begin() + first, begin() + end,
                                     [](const Parameter& each) { return each.trainable(); });
    const bool kept = (!device_updated_units_.empty() && device_updated_units_[unit]) ||
                      (keeps_frozen_ && frozen);
    std::fill(kept_.begin() + first, kept_.begin() + end, kept);
  }
}

bool ParameterSet::Counts(const ParameterPart& part) const {
  return part.whole ? ParameterList::Counts(part.index) : CountsPart(part.index);
}

void ParameterSet::PlaceGradients(const Range& range, float* data) {
  for (int64_t i = 0; i < size(); ++i) {
    const int64_t offset = places_[i].gradient;
    if (!(*this)[i].trainable() || offset < range.begin || offset >= range.end) continue;
    gradient_data_[i] = data == nullptr ? nullptr : data + (offset - range.begin);
  }
}

Status ParameterSet::Allocate(Context& context, bool with_gradients, DType matrices,
                              std::optional<DType> frozen) {
  stream_ = context.stream;
  SetTypes(matrices, frozen.value_or(matrices));
  places_.assign(static_cast<size_t>(size()), {});
  gradient_data_.assign(places_.size(), nullptr);
  placed_.assign(places_.size(), {});
  placed_words_.assign(places_.size(), {});
  Context below = context;
  if (offloaded_) {
    WEFT_CHECK(context.host != nullptr, "offloaded parameters need a host memory pool");
    below = InHostMemoryPool(context);
  }
  if (values_sharded()) {
    WEFT_CHECK(place_gradients_ && !has_derived(), "gradients of sharded values are placed");
    LayOutFlatParameters();
    return AllocateShards(below);
  }
  ChooseKept();
  WEFT_CHECK(device_updated_units_.empty() || (!streamed_ && ranks_ == 1 && !has_derived()),
             "units are kept on the device where the others have copies there");
  LayOutGradients();
  const ValueSizes sizes = LayOutValues();
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
    const Parameter& parameter = (*this)[i];
    if (parameter.unit != unit || places_[i].operand < 0) continue;
    if (parameter.looked_up() && !operands.tables) continue;
    AwaitUpdated(*context.host, i);
    const TensorView from = parameter.quantized_words > 0 ? held_value(i).view : padded_value(i);
    context.host->up().Copy(operands.memory.As<uint8_t>() + places_[i].operand, from.data,
                            from.Bytes());
  }
}

Status ParameterSet::AllocateOperands(Context& context) {
  if (streamed_) {
    LayOutUnitOperands();
    return OkStatus();
  }
  size_t bytes = 0;
  for (int64_t i = 0; i < size(); ++i) {
    const Parameter& parameter = (*this)[i];
    if (!parameter.read_unpacked() || IsKept(i)) continue;
    if (!parameter.stacked) bytes = RoundUp(bytes, kAlignBytes);
    places_[i].operand = static_cast<int64_t>(bytes);
    bytes += static_cast<size_t>(parameter.StoredElements()) * DTypeSize(parameter.dtype);
  }
  WEFT_ASSIGN_OR_RETURN(operands_, Tensor::New(context, Component::kParameters, DType::kU8,
                                               Shape{static_cast<int64_t>(bytes)}));
  return Clear(stream_, operands_);
}

void ParameterSet::AwaitUpdated(HostMemoryPool& host, int64_t index) const {
  if ((*this)[index].trainable()) host.updated().WaitFor(index);
}

void ParameterSet::UploadOperands(Context& context, int64_t unit) const {
  for (int64_t i = 0; i < size(); ++i) {
    if (places_[i].operand < 0 || (*this)[i].unit != unit) continue;
    AwaitUpdated(*context.host, i);
    const TensorView from = value(i);
    context.host->up().Copy(operand(i).data, from.data, from.Bytes());
  }
}

std::vector<float> ParameterSet::DrawnValue(int64_t index, uint64_t seed) const {
  const Drawing drawing((*this)[index], seed);
  std::vector<float> drawn(static_cast<size_t>(drawing.whole.Elements()));
  drawing.Fill({drawing.whole, 0, {}}, std::ssize(drawn), drawn.data());
  return drawn;
}

Status ParameterSet::Initialize(uint64_t seed) {
  std::optional<ParameterFileIterator> walk;
  if (file_ != nullptr) {
    walk.emplace(file_.get(), ParameterFileIterator::What{
                                  .values = true, .reads_values = false, .changes_values = true});
  }
  for (int64_t i = 0; i < size(); ++i) {
    if (walk) WEFT_RETURN_IF_ERROR(walk->MoveTo((*this)[i].unit));
    const HeldValue held = held_value(i);
    const TensorView& view = held.view;
    if (view.shape.Elements() == 0) continue;
    if ((*this)[i].quantized_words > 0) {
      WEFT_RETURN_IF_ERROR(Quantize(i, DrawnValue(i, seed)));
      continue;
    }
    const Drawing drawing((*this)[i], seed);
    const NamedTensor::Place place{drawing.whole, held.first, (*this)[i].shard};
    WEFT_RETURN_IF_ERROR(FillOnHost(stream_, view, [&](const TensorView& host) {
      kernels::cpu::WithFloatType(
          view.dtype, [&]<class T>() { drawing.Fill(place, view.shape.Elements(), host.As<T>()); });
    }));
  }
  if (walk) return walk->Finish();
  Context context;
  context.stream = stream_;
  return OnValues(context, ValuesFrom::kDrawn);
}

Status ParameterSet::Quantize(int64_t index, std::span<const float> values) {
  const Parameter& parameter = (*this)[index];
  const FourBitPart& part = parameter.four_bit_part;
  const FourBitLayout layout(four_bit_format(), parameter.logical_shape().Elements());
  std::vector<int32_t> words(static_cast<size_t>(layout.words));
  WEFT_RETURN_IF_ERROR(
      kernels::Quantize4Bit(four_bit_format(), values, words).WithContext(parameter.name));
  if (!part.whole()) {
    std::vector<int32_t> own(static_cast<size_t>(parameter.quantized_words));
    WEFT_RETURN_IF_ERROR(
        kernels::Take4BitPart(four_bit_format(), part, parameter.shape.Elements(), words, own)
            .WithContext(parameter.name));
    words = std::move(own);
  }
  const HeldValue held = held_value(index);
  if (held.view.shape.Elements() > 0) {
    WEFT_RETURN_IF_ERROR(Upload(stream_, words.data() + held.first, held.view));
  }
  // Without sharding, these words are what is held.
  if (!placed_words_[index]) return OkStatus();
  return Upload(stream_, words.data(), QuantizedWords(index));
}

TensorView ParameterSet::QuantizedWords(int64_t index) const {
  if (!values_sharded()) return held_value(index).view;
  const TensorView& placed = placed_words_[index];
  WEFT_CHECK(placed, "read before it was brought: " + (*this)[index].name);
  return {placed.data, placed.dtype, {(*this)[index].quantized_words}, placed.device};
}

TensorView ParameterSet::BroughtWords(int64_t index) const {
  if (!streamed_) return QuantizedWords(index);
  const Parameter& parameter = (*this)[index];
  const Tensor& memory = unit_operands_[static_cast<size_t>(parameter.unit)].memory;
  WEFT_CHECK(memory, "read before it was brought: " + parameter.name);
  return {memory.As<uint8_t>() + places_[index].operand,
          DType::kI32,
          {parameter.quantized_words},
          memory.view().device};
}

Status ParameterSet::Dequantize(const Stream& stream, int64_t index, const TensorView& to) const {
  return kernels::Dequantize4Bit(stream, {.words = BroughtWords(index),
                                          .format = four_bit_format(),
                                          .y = to,
                                          .part = (*this)[index].four_bit_part});
}

std::vector<NamedTensor> ParameterSet::NamedValues() const {
  std::vector<NamedTensor> tensors;
  for (int64_t i = 0; i < size(); ++i) {
    if ((*this)[i].derived()) continue;
    if ((*this)[i].quantized_words > 0) {
      for (NamedTensor& tensor : WordTensors(*this, i)) tensors.push_back(std::move(tensor));
      continue;
    }
    const HeldValue held = held_value(i);
    tensors.push_back({.name = (*this)[i].name, .view = held.view, .parameter = i});
    if (file_ != nullptr) tensors.back().stored = file_->Stored(i);
    if (values_sharded() && !(*this)[i].replicated) {
      tensors.back().part = {.whole = (*this)[i].shape, .first = held.first};
    }
  }
  return tensors;
}

ParameterSet::HeldValue ParameterSet::held_value(int64_t index) const {
  const int64_t words = (*this)[index].quantized_words;
  if (words > 0 && !values_sharded()) {
    const Tensor& values = IsKept(index) ? kept_values_ : values_;
    return {
        0,
        {values.As<uint8_t>() + places_[index].value, DType::kI32, {words}, values.view().device}};
  }
  if (!values_sharded() || (*this)[index].replicated) return {0, value(index)};
  const auto begin = static_cast<int64_t>(places_[index].value);
  const int64_t end = begin + (words > 0 ? words : (*this)[index].shape.Elements());
  const FlatParameter& flat = FlatParameterOf(index);
  const Range own = OwnOf(flat);
  const int64_t first = std::clamp(own.begin, begin, end);
  const int64_t count = std::clamp(own.end, begin, end) - first;
  auto* data = static_cast<char*>(flat.held.data);
  if (data != nullptr && count > 0) {
    data += static_cast<size_t>(first - own.begin) * DTypeSize(flat.dtype);
  }
  return {first - begin, {data, flat.dtype, {count}, flat.held.device}};
}

void ParameterSet::PlaceFlatParameter(const FlatParameter& flat, const TensorView& values) {
  for (int64_t index : flat.parameters) {
    TensorView& placed = ((*this)[index].quantized_words > 0 ? placed_words_ : placed_)[index];
    placed = values;
    if (!values) continue;
    placed.data =
        static_cast<char*>(values.data) +
        (places_[index].value - static_cast<size_t>(flat.elements.begin)) * DTypeSize(values.dtype);
  }
}

std::vector<TensorView> ParameterSet::DifferentiatedGradients() const {
  std::vector<TensorView> views(places_.size());
  for (int64_t i = 0; i < size(); ++i) {
    if ((*this)[i].differentiated()) views[i] = gradient(i);
  }
  return views;
}

TensorView ParameterSet::differentiated_gradients() const {
  return {gradients_.As<float>(), DType::kF32, {differentiated_count_}, gradients_.view().device};
}

Shape ParameterSet::ShapeOf(int64_t index, int64_t count, bool padded) const {
  Shape shape = (*this)[index].shape;
  if (padded) shape.dims[0] = (*this)[index].padded_rows;
  for (int64_t i = 1; i < count; ++i) shape.dims[0] += (*this)[index + i].shape[0];
  return shape;
}

TensorView ParameterSet::ValueView(int64_t index, int64_t count, bool padded) const {
  const Parameter& parameter = (*this)[index];
  if (parameter.quantized_words > 0) {
    const TensorView& placed = placed_[index];
    return {placed.data, placed ? placed.dtype : parameter.dtype, ShapeOf(index, count, padded),
            stream_.device};
  }
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
  const Tensor& values = IsKept(index) ? kept_values_ : values_;
  return {values.As<uint8_t>() + places_[index].value, parameter.dtype,
          ShapeOf(index, count, padded), values.view().device};
}

TensorView ParameterSet::OperandView(int64_t index, int64_t count, bool padded) const {
  TensorView view = ValueView(index, count, padded);
  if (!on_host(index) || values_sharded()) return view;
  const Parameter& parameter = (*this)[index];
  WEFT_CHECK(has_operand_copy(index), "only packed copies of it are on the device");
  const Tensor& memory =
      streamed_ ? unit_operands_[static_cast<size_t>(parameter.unit)].memory : operands_;
  WEFT_CHECK(memory, "read before it was brought: " + parameter.name);
  view.data = memory.As<uint8_t>() + places_[index].operand;
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
