// Where the numbers of a ParameterSet are: in its buffers, in parts, or in a file.
#include <algorithm>
#include <map>
#include <tuple>

#include "common/number.h"
#include "worker/engine/nn/parameter_file.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

constexpr int64_t kAlignElements = 16;  // 64 bytes
constexpr size_t kAlignBytes = 64;

int64_t Aligned(int64_t elements, int64_t ranks) {
  return RoundUp(elements, kAlignElements * ranks);
}

size_t AlignedBytes(size_t bytes) {
  return RoundUp(bytes, kAlignBytes);
}

}  // namespace

ParameterSet::ValueSizes ParameterSet::LayOutValues() {
  values_follow_gradients_ = ranks_ > 1 && ValuesCanFollowGradients();
  if (values_follow_gradients_ && in_file_) return {.bytes = FollowGradientsInUnits()};
  ValueSizes sizes;
  if (values_follow_gradients_) {
    sizes.bytes = static_cast<size_t>(gradient_count_) * sizeof(float);
  }
  for (int64_t i = 0; i < size(); ++i) {
    const Parameter& parameter = (*this)[i];
    if (values_follow_gradients_ && parameter.trainable()) {
      places_[i].value = static_cast<size_t>(places_[i].gradient) * sizeof(float);
      continue;
    }
    size_t& bytes = IsKept(i) ? sizes.kept : sizes.bytes;
    if (!parameter.stacked) bytes = AlignedBytes(bytes);
    while (std::ssize(unit_begins_) <= parameter.unit) unit_begins_.push_back(bytes);
    places_[i].value = bytes;
    bytes += parameter.StoredBytes();
  }
  sizes = {AlignedBytes(sizes.bytes), AlignedBytes(sizes.kept)};
  while (std::ssize(unit_begins_) <= units()) unit_begins_.push_back(sizes.bytes);
  return sizes;
}

// In a unit frozen ones come after the others.
size_t ParameterSet::FollowGradientsInUnits() {
  size_t bytes = 0;
  for (int64_t unit = 0; unit < units(); ++unit) {
    unit_begins_.push_back(bytes);
    const int64_t first = FirstGradient(unit);
    const size_t begin = bytes;
    bytes += static_cast<size_t>(FirstGradient(unit + 1) - first) * sizeof(float);
    for (int64_t i = 0; i < size(); ++i) {
      const Parameter& parameter = (*this)[i];
      if (parameter.unit != unit) continue;
      if (parameter.trainable()) {
        places_[i].value = begin + static_cast<size_t>(places_[i].gradient - first) * sizeof(float);
        continue;
      }
      if (!parameter.stacked) bytes = AlignedBytes(bytes);
      places_[i].value = bytes;
      bytes += parameter.StoredBytes();
    }
    bytes = AlignedBytes(bytes);
  }
  unit_begins_.push_back(bytes);
  return bytes;
}

int64_t ParameterSet::FirstGradient(int64_t unit) const {
  for (int64_t i = 0; i < size(); ++i) {
    if ((*this)[i].unit >= unit && (*this)[i].trainable()) return places_[i].gradient;
  }
  return gradient_count_;
}

TensorView ParameterSet::ValuesAlong(const Range& range) const {
  WEFT_CHECK(values_follow_gradients_, "values are not laid out as gradients are");
  if (file_ == nullptr) {
    auto* values = reinterpret_cast<float*>(values_.As<uint8_t>());
    return {values + range.begin, DType::kF32, {range.size()}, values_.view().device};
  }
  int64_t index = size() - 1;
  while (!(*this)[index].trainable() || places_[index].gradient > range.begin) --index;
  const int64_t unit = (*this)[index].unit;
  std::byte* const values = unit_values_[static_cast<size_t>(unit)];
  WEFT_CHECK(values != nullptr, "values in a file are read first");
  return {reinterpret_cast<float*>(values) + (range.begin - FirstGradient(unit)),
          DType::kF32,
          {range.size()}};
}

ParameterSet::GradientCounts ParameterSet::LayOutGradientRuns() {
  GradientCounts counts;
  gradient_runs_.clear();
  for (int64_t i : gradient_order_) {
    const Range range = GradientRange(i);
    const bool kept = IsKept(i);
    int64_t& held = kept ? counts.kept : counts.elements;
    if (gradient_runs_.empty() || gradient_runs_.back().kept != kept) {
      gradient_runs_.push_back({{range.begin, range.begin}, held, kept});
    }
    gradient_runs_.back().range.end = range.end;
    held += range.size();
  }
  return counts;
}

Tensor ParameterSet::HeldGradients(const Range& range) const {
  const auto run =
      std::find_if(gradient_runs_.begin(), gradient_runs_.end(),
                   [&](const GradientRun& each) { return range.begin < each.range.end; });
  WEFT_CHECK(run != gradient_runs_.end() && range.end <= run->range.end,
             "gradients of a run follow one another");
  const Tensor& memory = run->kept ? kept_gradients_ : gradients_;
  return memory.Elements(run->held_at + range.begin - run->range.begin, range.size());
}

// A stack is one matrix of values, also where only some of it is trained.
bool ParameterSet::ValuesCanFollowGradients() const {
  for (int64_t i = 0; i < size(); ++i) {
    if ((*this)[i].trainable() && (*this)[i].dtype != DType::kF32) return false;
    if ((*this)[i].stacked && (*this)[i].trainable() != (*this)[i - 1].trainable()) {
      return false;
    }
  }
  return true;
}

// A stack is one matrix of gradients as far as it is trained.
void ParameterSet::OrderGradients() {
  gradient_kinds_.clear();
  for (int64_t first = 0, end = 0; first < size(); first = end) {
    end = first + 1;
    while (end < size() && (*this)[end].stacked) ++end;
    const bool derived = std::any_of(begin() + first, begin() + end,
                                     [](const Parameter& each) { return each.derived(); });
    const GradientKind kind = (*this)[first].source_of >= 0 ? GradientKind::kOfSource
                              : derived                     ? GradientKind::kOfDerived
                                                            : GradientKind::kPlain;
    gradient_kinds_.resize(static_cast<size_t>(end), kind);
  }
  gradient_order_.clear();
  for (const GradientKind kind :
       {GradientKind::kPlain, GradientKind::kOfDerived, GradientKind::kOfSource}) {
    for (int64_t i = 0; i < size(); ++i) {
      if ((*this)[i].trainable() && gradient_kind(i) == kind) gradient_order_.push_back(i);
    }
  }
}

// Trainable parameters one after the other; stacked ones still without a gap.
void ParameterSet::LayOutGradients() {
  OrderGradients();
  gradient_count_ = differentiated_count_ = 0;
  int64_t before = -1;
  for (int64_t i : gradient_order_) {
    const Parameter& parameter = (*this)[i];
    const bool joins = parameter.stacked && before == i - 1;
    if (!joins) gradient_count_ = Aligned(gradient_count_, ranks_);
    places_[i].gradient = gradient_count_;
    if (before >= 0) places_[before].gradient_end = gradient_count_;
    gradient_count_ += parameter.StoredElements();
    if (parameter.source_of < 0) differentiated_count_ = Aligned(gradient_count_, ranks_);
    before = i;
  }
  gradient_count_ = Aligned(gradient_count_, ranks_);
  if (before >= 0) places_[before].gradient_end = gradient_count_;
}

// Stacks are in one flat parameter, trained as far as a part of them is.
void ParameterSet::LayOutFlatParameters() {
  using Kind = std::tuple<bool, int64_t, int64_t, bool, DType, bool, bool, bool, bool>;
  std::map<Kind, size_t> found;
  for (int64_t first = 0; first < size();) {
    int64_t end = first + 1;
    while (end < size() && (*this)[end].stacked) ++end;
    const Parameter& parameter = (*this)[first];
    const bool trained = std::any_of(begin() + first, begin() + end,
                                     [](const Parameter& p) { return p.trainable(); });
    const int64_t last_unit = LastUnitOf(first);
    const bool rounded =
        parameter.shape.rank >= 2 && parameter.quantized_words == 0 && !parameter.gathered_as_held;
    const bool looked_up = parameter.read_forward_alone();
    const bool of_experts = parameter.of_shared_expert;
    const bool replicated = parameter.replicated;
    const DType dtype = parameter.stored_type();
    const auto [it, is_new] =
        found.try_emplace(Kind(!trained, parameter.unit, last_unit, rounded, dtype, looked_up,
                               of_experts, replicated, parameter.of_all_blocks),
                          flat_parameters_.size());
    if (is_new) {
      const int64_t copies = replicated ? ranks_ : of_experts ? expert_ranks() : 1;
      flat_parameters_.push_back({.trained = trained,
                                  .rounded = rounded,
                                  .dtype = dtype,
                                  .first_unit = parameter.unit,
                                  .last_unit = last_unit,
                                  .looked_up = looked_up,
                                  .of_experts = of_experts,
                                  .replicated = replicated,
                                  .of_all_blocks = parameter.of_all_blocks,
                                  .ranks = ranks_ / copies,
                                  .rank = replicated   ? 0
                                          : of_experts ? part_of_experts_
                                                       : shard_rank_});
    }
    for (; first < end; ++first) flat_parameters_[it->second].parameters.push_back(first);
  }
  std::stable_partition(flat_parameters_.begin(), flat_parameters_.end(),
                        [](const FlatParameter& flat) { return flat.trained; });
  int64_t offset = 0;
  gradient_count_ = 0;
  for (FlatParameter& flat : flat_parameters_) {
    flat.elements.begin = offset;
    for (int64_t index : flat.parameters) {
      const Parameter& parameter = (*this)[index];
      // Words are no rows of a matrix.
      if (!parameter.stacked || parameter.quantized_words > 0) offset = Aligned(offset, 1);
      places_[index].value = static_cast<size_t>(offset);
      if (parameter.trainable()) places_[index].gradient = offset;
      offset += parameter.StoredElements();
    }
    // A multiple from the flat parameter's own beginning.
    flat.elements.end = offset =
        flat.elements.begin + Aligned(offset - flat.elements.begin, flat.ranks);
    if (flat.trained) gradient_count_ = offset;
  }
  differentiated_count_ = gradient_count_;
}

Status ParameterSet::AllocateShards(Context& context) {
  if (in_file_) return MakeFile(context);
  size_t bytes = 0;
  for (const FlatParameter& flat : flat_parameters_) {
    bytes += static_cast<size_t>(flat.elements.size() / flat.ranks) * DTypeSize(flat.dtype);
  }
  WEFT_ASSIGN_OR_RETURN(values_, Tensor::New(context, Component::kParameters, DType::kU8,
                                             Shape{static_cast<int64_t>(bytes)}));
  size_t offset = 0;
  for (FlatParameter& flat : flat_parameters_) {
    flat.held = values_.Part(offset, flat.dtype, {flat.elements.size() / flat.ranks});
    offset += flat.held.Bytes();
    if (flat.replicated) PlaceFlatParameter(flat, flat.held);
  }
  return Clear(stream_, values_);
}

Status ParameterSet::MakeFile(const Context& context) {
  WEFT_CHECK((streamed_ || values_sharded()) && !has_derived(),
             "values in a file are brought unit by unit");
  unit_values_.assign(static_cast<size_t>(units()), nullptr);
  std::vector<int64_t> bytes(unit_values_.size());
  for (size_t unit = 0; !values_sharded() && unit < bytes.size(); ++unit) {
    bytes[unit] = static_cast<int64_t>(unit_begins_[unit + 1] - unit_begins_[unit]);
  }
  for (FlatParameter& flat : flat_parameters_) {
    int64_t& of_unit = bytes[static_cast<size_t>(flat.first_unit)];
    flat.held_offset = static_cast<size_t>(of_unit);
    flat.held = {nullptr, flat.dtype, {flat.elements.size() / flat.ranks}};
    of_unit += static_cast<int64_t>(AlignedBytes(flat.held.Bytes()));
  }
  WEFT_ASSIGN_OR_RETURN(file_, ParameterFile::New(context, this, bytes));
  return OkStatus();
}

void ParameterSet::PlaceUnit(int64_t unit, std::byte* data) {
  unit_values_[static_cast<size_t>(unit)] = data;
  for (FlatParameter& flat : flat_parameters_) {
    if (flat.first_unit != unit) continue;
    flat.held.data = data == nullptr ? nullptr : data + flat.held_offset;
  }
}

size_t ParameterSet::OffsetInUnit(int64_t index) const {
  const Parameter& parameter = (*this)[index];
  if (!values_sharded()) {
    return places_[index].value - unit_begins_[static_cast<size_t>(parameter.unit)];
  }
  const FlatParameter& flat = FlatParameterOf(index);
  const Range own = OwnOf(flat);
  const int64_t skipped =
      std::clamp<int64_t>(static_cast<int64_t>(places_[index].value) - own.begin, 0, own.size());
  return flat.held_offset + static_cast<size_t>(skipped) * DTypeSize(flat.dtype);
}

const ParameterSet::FlatParameter& ParameterSet::FlatParameterOf(int64_t index) const {
  const auto begin = static_cast<int64_t>(places_[index].value);
  return *std::find_if(flat_parameters_.begin(), flat_parameters_.end(),
                       [&](const FlatParameter& flat) {
                         return begin >= flat.elements.begin && begin < flat.elements.end;
                       });
}

ParameterSet::Range ParameterSet::OwnOf(const FlatParameter& flat) const {
  const int64_t length = flat.elements.size() / flat.ranks;
  const int64_t begin = flat.elements.begin + flat.rank * length;
  return {begin, begin + length};
}

// Tables that are looked up come last.
void ParameterSet::LayOutUnitOperands() {
  unit_sizes_.assign(static_cast<size_t>(units()), {});
  unit_operands_.resize(static_cast<size_t>(units()));
  for (const bool tables : {false, true}) {
    for (int64_t i = 0; i < size(); ++i) {
      const Parameter& parameter = (*this)[i];
      if (!parameter.read_unpacked() && parameter.quantized_words == 0) continue;
      if (parameter.looked_up() != tables) continue;
      UnitSizes& sizes = unit_sizes_[static_cast<size_t>(parameter.unit)];
      if (!parameter.stacked) {
        sizes.all =
            (sizes.all + kAlignElements * 4 - 1) / (kAlignElements * 4) * kAlignElements * 4;
      }
      places_[i].operand = sizes.all;
      sizes.all += static_cast<int64_t>(parameter.StoredBytes());
      if (!tables) sizes.without_tables = sizes.all;
    }
  }
}

}  // namespace weft::engine
