#include "worker/engine/nn/parameter_list.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "common/glob.h"
#include "common/model/name_patterns.h"

namespace weft::engine {
namespace {

/// Which blocks of its logical matrix are in the shard of a parameter; none where it cuts some.
std::optional<FourBitPart> BlocksOf(const Parameter& parameter, int64_t block_size) {
  const Shard& shard = parameter.shard;
  if (shard.whole()) return FourBitPart();
  const Shape logical = parameter.logical_shape();
  if (shard.across.size() > 0 || logical[1] % block_size != 0) return std::nullopt;
  // Numbers of a row, or of a row's column.
  const int64_t unit = shard.axis == 0 ? logical[1] : 1;
  const std::vector<Shard::Range>& ranges = shard.ranges;
  const auto distance = [&](size_t range) { return ranges[range].begin - ranges[range - 1].begin; };
  for (size_t i = 1; i < ranges.size(); ++i) {
    const bool alike = ranges[i].size() == ranges[0].size() && distance(i) == distance(1);
    if (shard.axis == 1 || !alike) return std::nullopt;
  }
  const int64_t first = ranges[0].begin * unit, run = ranges[0].size() * unit;
  const int64_t stride = shard.axis == 1      ? logical[1]
                         : ranges.size() == 1 ? logical.Elements()
                                              : distance(1) * unit;
  if (first % block_size != 0 || run % block_size != 0) return std::nullopt;
  return FourBitPart{.of = logical.Elements() / block_size,
                     .first = first / block_size,
                     .run = run / block_size,
                     .stride = stride / block_size};
}

}  // namespace

int64_t ParameterList::Register(std::string name, Shape shape, ParameterRole role,
                                ParameterOptions options) {
  Parameter parameter;
  parameter.role = role;
  parameter.bias = options.bias;
  parameter.block = block_;
  parameter.name = std::move(name);
  parameter.padded_rows = std::max(options.padded_rows, shape[0]);
  parameter.shape = shape;
  parameter.shard = std::move(options.shard);
  parameter.in_place_of = std::move(options.in_place_of);
  parameter.adapter_of = std::move(options.adapter_of);
  parameter.adapter = options.adapter;
  parameter.expert = options.expert;
  parameter.row_part = options.row_part;
  parameter.row_parts = options.row_parts;
  parameter.replicated = options.replicated;
  parameter.starts_at_zero = options.starts_at_zero;
  parameter.weight_shape = options.weight_shape;
  parameter.parts = std::move(options.parts);
  parameter.read_directly = options.read_directly;
  parameter.read_backward = options.read_backward;
  return Add(std::move(parameter));
}

int64_t ParameterList::RegisterStack(const std::vector<StackedPart>& parts, const Shape& row) {
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

void ParameterList::SetStart(int64_t index, const Initializer& initializer,
                             double learning_rate_scale) {
  parameters_[index].initializer = initializer;
  parameters_[index].learning_rate_scale = learning_rate_scale;
}

int64_t ParameterList::Add(Parameter parameter) {
  WEFT_CHECK(!complete_, "parameters are registered before they are allocated");
  parameter.unit = unit_;
  parameters_.push_back(std::move(parameter));
  return size() - 1;
}

void ParameterList::SetParts(int64_t index, std::vector<int64_t> rows) {
  Parameter& parameter = parameters_[index];
  WEFT_CHECK(std::accumulate(rows.begin(), rows.end(), int64_t{0}) == parameter.shape[0],
             "the parts make up the whole of " + parameter.name);
  parameter.parts = std::move(rows);
}

void ParameterList::Derive(int64_t index, std::vector<Source> sources) {
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
    parameter.shard = std::move(source.shard);
    parameter.sees_all_rows = true;
    parameter.padded_rows = source.shape[0];
    parameter.initializer = source.initializer;
    parameter.learning_rate_scale = parameters_[index].learning_rate_scale;
    parameter.source_of = index;
    Add(std::move(parameter));
  }
}

Status ParameterList::SetFourBit(int64_t index, const FourBitFormat& format) {
  Parameter& parameter = parameters_[index];
  WEFT_CHECK(parameter.frozen && !complete_,
             "weights that are not trained are quantised: " + parameter.name);
  const std::optional<FourBitPart> part = BlocksOf(parameter, format.block_size);
  if (!part) {
    const Shape whole = parameter.logical_shape();
    return InvalidError(parameter.name + " " + whole.ToString() + " is quantised in blocks of " +
                        std::to_string(format.block_size) +
                        " numbers of a row, which its tensor-parallel ranks would cut; hint: "
                        "model.weight_quantization.block_size 32, or fewer of these ranks");
  }
  four_bit_format_ = format;
  parameter.four_bit_part = *part;
  parameter.quantized_words = FourBitLayout(format, parameter.shape.Elements(), *part).words;
  return OkStatus();
}

void ParameterList::StartUnit(int64_t block) {
  ++unit_;
  block_ = block;
  blocks_ = std::max(blocks_, block + 1);
}

std::vector<std::string> ParameterList::Names() const {
  if (!names_.empty()) return names_;
  std::vector<std::string> names;
  for (const Parameter& parameter : parameters_) {
    if (!parameter.in_place_of.empty()) names.push_back(parameter.in_place_of);
    names.push_back(parameter.name);
  }
  return names;
}

Status ParameterList::Freeze(const std::vector<std::string>& patterns) {
  // Checks the names of the whole network: a stage may have nothing to train.
  const std::vector<std::string> names = Names();
  WEFT_RETURN_IF_ERROR(CheckPatterns("model.freeze", patterns, names));
  const bool trains = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return !MatchesAny(patterns, name);
  });
  if (!trains) return NothingToTrainError();
  for (Parameter& parameter : parameters_) {
    if (MatchesAny(patterns, parameter.name) || MatchesAny(patterns, parameter.in_place_of)) {
      parameter.frozen = true;
    }
  }
  return OkStatus();
}

void ParameterList::SetExpertRank(int64_t rank, int64_t ranks) {
  WEFT_CHECK(!complete_, "ranks are known before parameters are allocated");
  expert_rank_ = rank;
  expert_ranks_ = ranks;
  SetStage();
  for (Parameter& parameter : parameters_) {
    parameter.of_shared_expert = parameter.expert >= 0;
  }
}

Result<int64_t> ParameterList::Find(std::string_view name) const {
  for (int64_t i = 0; i < size(); ++i) {
    if (parameters_[i].name == name) return i;
  }
  return NotFoundError("the model has no parameter '" + std::string(name) + "'");
}

template <class Which>
int64_t ParameterList::CountElements(Which&& which) const {
  int64_t count = 0;
  for (const Parameter& parameter : parameters_) {
    if (parameter.source_of >= 0 || !parameter.counted || !which(parameter)) continue;
    if (expert_rank_ > 0 && !parameter.of_shared_expert) continue;
    count += parameter.logical_shape().Elements();
  }
  return count;
}

int64_t ParameterList::ElementCount() const {
  return CountElements([](const Parameter&) { return true; });
}

int64_t ParameterList::TrainedCount() const {
  return CountElements([](const Parameter& parameter) { return parameter.trainable(); });
}

void ParameterList::SetTypes(DType matrices, DType frozen) {
  complete_ = true;
  // A stack is read as one matrix, so it is f32 when a part of it is derived.
  std::vector<bool> made(parameters_.size());
  for (size_t i = 0; i < made.size(); ++i) {
    const bool joins = parameters_[i].stacked && made[i - 1];
    made[i] = joins || parameters_[i].derived();
  }
  for (size_t i = made.size(); i-- > 1;) {
    if (parameters_[i].stacked && made[i]) made[i - 1] = true;
  }
  const auto only_multiplied = [](const Parameter& each) {
    return each.frozen && each.shape.rank >= 2 && !each.read_directly && !each.looked_up() &&
           each.quantized_words == 0;
  };
  for (auto first = parameters_.begin(); first != parameters_.end();) {
    const auto end = std::find_if(first + 1, parameters_.end(),
                                  [](const Parameter& each) { return !each.stacked; });
    const bool all_frozen = std::all_of(first, end, only_multiplied);
    for (; first != end; ++first) {
      const bool is_made = made[static_cast<size_t>(first - parameters_.begin())];
      const bool is_matrix = first->shape.rank >= 2 && !is_made;
      first->dtype = !is_matrix ? DType::kF32 : all_frozen ? frozen : matrices;
    }
  }
}

}  // namespace weft::engine
