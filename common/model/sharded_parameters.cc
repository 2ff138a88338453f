#include "common/model/sharded_parameters.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <vector>

#include "common/dtype.h"
#include "common/model/model_sizes.h"
#include "common/model/parameter_groups.h"
#include "common/model/parameter_list.h"
#include "common/model/technique_cost.h"
#include "common/number.h"

namespace weft {
namespace {

constexpr int64_t kF32 = 4;

}  // namespace

struct FlatParameters::Sharing {
  std::vector<int64_t> ranks;     ///< By flat parameter: that have parts of it.
  std::vector<int64_t> elements;  ///< Of each flat parameter, in whole parts.
};

FlatParameters::FlatParameters(const ModelSpec& model, const PrecisionRecipe& precision,
                               DType gathered, int64_t tensor, int64_t rows, int64_t expert_ranks,
                               const TrainSpec& train)
    : gathered_(gathered),
      expert_ranks_(expert_ranks),
      last_(DistinctBlocks(model) + 1),
      trained_passes_(TrainedPasses(model, train)) {
  of_unit_.resize(static_cast<size_t>(last_ + 1));
  const DType frozen_type = FrozenMatrixType(model, precision);
  std::map<std::tuple<int64_t, int64_t, bool, DType, bool, bool, bool, bool>, size_t> found;
  const bool classifies = !model.untied_classifier && HeadOf(model) != "classification";
  const std::vector<ParameterGroup> groups = ParameterGroupsOfRank(model, tensor, rows);
  int64_t blocks = 1;
  for (const ParameterGroup& group : groups) {
    const ParameterInfo& parameter = group.first;
    if (!IsOnExpertRank(model, parameter, expert_ranks)) continue;
    blocks = std::max(blocks, group.blocks);
    const int64_t unit = parameter.unit;
    const int64_t count = group.experts > 1 ? group.experts / expert_ranks : 1;
    const bool tied = unit == 0 && IsClassifier(model, parameter);
    const bool looked_up = parameter.read_forward_alone();
    const bool trained = !parameter.frozen;
    const bool of_experts = expert_ranks > 1 && parameter.expert >= 0;
    const bool quantized = parameter.quantized_words > 0;
    const bool matrix = parameter.matrix() && !quantized;
    const bool rounded = matrix && !GathersAsHeld(train, parameter);
    const DType type = quantized                   ? DType::kI32
                       : parameter.only_multiplied ? frozen_type
                       : matrix                    ? precision.matrices
                                                   : DType::kF32;
    if (parameter.replicated) {
      replicated_bytes_ +=
          group.blocks * count * RoundUp(parameter.StoredElements(), 16) * ElementBytes(type);
      continue;
    }
    const bool of_all = parameter.of_all_blocks;
    const auto [it, is_new] = found.try_emplace(std::tuple(unit, tied ? last_ : unit, rounded, type,
                                                           looked_up, trained, of_experts, of_all),
                                                flat_parameters_.size());
    if (is_new) {
      if (!of_all) of_unit_[static_cast<size_t>(unit)].push_back(flat_parameters_.size());
      if (tied) of_unit_[static_cast<size_t>(last_)].push_back(flat_parameters_.size());
      flat_parameters_.push_back(
          {unit, tied ? last_ : unit, rounded, type, looked_up, trained, of_experts, of_all});
    }
    flat_parameters_[it->second].added_to_last |= of_all || (parameter.of_table && classifies);
    const int64_t elements = quantized ? parameter.quantized_words : parameter.StoredElements();
    flat_parameters_[it->second].elements += count * RoundUp(elements, 16);
    // All blocks take turns with one set of copies.
    if (matrix && (parameter.packed() || tied) && parameter.block < 1) {
      packed_ += count * elements;
      if (parameter.in_tiles()) packed_in_tiles_ += count * elements;
      packed_padding_.Add(parameter.packed_padding(), count);
    }
    if (trained && !of_all) first_differentiated_ = std::min(first_differentiated_, unit);
  }
  // Blocks that were listed as one.
  for (int64_t unit = 2; unit <= blocks; ++unit) {
    for (const size_t of_first : of_unit_[1]) {
      of_unit_[static_cast<size_t>(unit)].push_back(flat_parameters_.size());
      FlatParameter flat = flat_parameters_[of_first];
      flat.first_unit = flat.last_unit = unit;
      flat_parameters_.push_back(flat);
    }
  }
}

ShardedParameters FlatParameters::Among(int64_t ranks) const {
  ShardedParameters result;
  result.held = replicated_bytes_;
  result.packed = packed_;
  result.packed_in_tiles = packed_in_tiles_;
  result.packed_padding = packed_padding_;
  Sharing sharing;
  for (const FlatParameter& flat : flat_parameters_) {
    const int64_t shard_ranks = flat.of_experts ? ranks / expert_ranks_ : ranks;
    const int64_t elements = RoundUp(flat.elements, 16 * shard_ranks);
    sharing.ranks.push_back(shard_ranks);
    sharing.elements.push_back(elements);
    result.held += elements / shard_ranks * Held(flat);
    if (!flat.trained) continue;
    result.gradients += kF32 * elements / shard_ranks;
    if (shard_ranks == 1) continue;
    ShardedTraffic& traffic = flat.of_experts ? result.experts : result;
    traffic.reduced_payload += kF32 * elements;
    ++traffic.reductions;
  }
  Gather(sharing, result);
  GatherTrained(sharing, result);
  GatherForAllBlocks(sharing, result);
  OpenGradients(sharing, result);
  CutFiles(sharing, result);
  return result;
}

int64_t FlatParameters::Held(const FlatParameter& flat) const {
  return ElementBytes(flat.type);
}

// Bytes of a number as it is gathered for `unit`.
int64_t FlatParameters::Transfers(const FlatParameter& flat, int64_t unit) const {
  const bool rounds = flat.rounded && gathered_ == DType::kBF16 && unit > 0;
  return rounds ? ElementBytes(DType::kBF16) : Held(flat);
}

// What one rank alone has is where it is held, unless it is sent in another type.
int64_t FlatParameters::Brought(const Sharing& sharing, size_t index, int64_t unit,
                                bool backward) const {
  const FlatParameter& flat = flat_parameters_[index];
  if (backward && unit == 0 && flat.looked_up) return 0;
  const int64_t element = Transfers(flat, unit);
  const bool in_place = sharing.ranks[index] == 1 && element == Held(flat);
  return in_place ? 0 : sharing.elements[index] * element;
}

// What is in another type is apart from the held ones anyway.
int64_t FlatParameters::Alone(const Sharing& sharing, size_t index, int64_t unit,
                              bool backward) const {
  const FlatParameter& flat = flat_parameters_[index];
  if (sharing.ranks[index] > 1 || (backward && unit == 0 && flat.looked_up)) return 0;
  return sharing.elements[index] * Transfers(flat, unit);
}

int64_t FlatParameters::AloneBytes(const Sharing& sharing, int64_t unit, bool backward) const {
  int64_t bytes = 0;
  for (const size_t index : of_unit_[static_cast<size_t>(unit)]) {
    bytes += Alone(sharing, index, unit, backward);
  }
  return bytes;
}

int64_t FlatParameters::PartBytes(const Sharing& sharing, int64_t unit, bool backward) const {
  int64_t bytes = AloneBytes(sharing, unit, backward);
  for (const size_t index : of_unit_[static_cast<size_t>(unit)]) {
    if (sharing.ranks[index] == 1) continue;
    bytes += Brought(sharing, index, unit, backward) / sharing.ranks[index];
  }
  return bytes;
}

int64_t FlatParameters::Bytes(const Sharing& sharing, int64_t unit, bool backward) const {
  int64_t bytes = 0;
  for (const size_t index : of_unit_[static_cast<size_t>(unit)]) {
    bytes += Brought(sharing, index, unit, backward);
  }
  return bytes;
}

void FlatParameters::CountGathers(const Sharing& sharing, int64_t unit, bool backward,
                                  ShardedParameters& result) const {
  for (const size_t index : of_unit_[static_cast<size_t>(unit)]) {
    const int64_t bytes = Brought(sharing, index, unit, backward);
    if (sharing.ranks[index] == 1 || bytes == 0) continue;
    ShardedTraffic& traffic = flat_parameters_[index].of_experts ? result.experts : result;
    (backward ? traffic.backward_payload : traffic.forward_payload) += bytes;
    ++(backward ? traffic.backward_gathers : traffic.forward_gathers);
  }
}

// Units in the order of the passes; the last block stays for its backward pass, as the head does.
void FlatParameters::Gather(const Sharing& sharing, ShardedParameters& result) const {
  const bool stays = first_differentiated_ < last_;
  const auto comes = [&](int64_t unit, bool backward) {
    return backward ? unit >= first_differentiated_ : unit <= last_;
  };
  // This rank's part, where that is one of the units to come.
  const auto part = [&](int64_t unit, bool backward) {
    return comes(unit, backward) ? PartBytes(sharing, unit, backward) : 0;
  };
  // The same of the next unit, being gathered; what one rank alone has of it counts as whole.
  const auto gathered = [&](int64_t unit, bool backward) {
    return comes(unit, backward) ? part(unit, backward) - AloneBytes(sharing, unit, backward) : 0;
  };
  const auto whole_from_host = [&](int64_t unit, bool backward) {
    int64_t bytes = 0;
    for (const size_t index : of_unit_[static_cast<size_t>(unit)]) {
      bytes +=
          std::max(Brought(sharing, index, unit, backward), Alone(sharing, index, unit, backward));
    }
    return bytes;
  };
  const auto hold = [&](int64_t whole, int64_t from_host) {
    result.gathered = std::max(result.gathered, whole);
    result.gathered_from_host = std::max(result.gathered_from_host, from_host);
  };
  for (int64_t unit = 0; unit <= last_; ++unit) {
    CountGathers(sharing, unit, false, result);
    const int64_t comes_up = PartBytes(sharing, unit, false);
    if (unit == 0) {
      result.link.first = comes_up;
      // The first unit is gathered while the parts of the next two come.
      hold(0, whole_from_host(0, false) + gathered(0, false) + part(1, false) + part(2, false));
    }
    result.link.forward += comes_up;
    const bool keeps = unit == last_ && stays;
    const int64_t other = unit < last_ ? unit + 1 : keeps ? unit - 1 : -1;
    const auto both = [&](const auto& bytes) {
      return bytes(unit) + (other < 0 ? 0 : bytes(other));
    };
    hold(both([&](int64_t u) { return Bytes(sharing, u, false); }),
         both([&](int64_t u) { return whole_from_host(u, false); }) +
             (keeps ? part(unit - 2, true) : gathered(unit + 1, false) + part(unit + 2, false)));
  }
  for (int64_t unit = last_ - 2; unit >= first_differentiated_; --unit) {
    CountGathers(sharing, unit, true, result);
    result.link.backward += PartBytes(sharing, unit, true);
    hold(Bytes(sharing, unit, true) + Bytes(sharing, unit + 1, true),
         whole_from_host(unit, true) + whole_from_host(unit + 1, true) + gathered(unit, true) +
             part(unit - 1, true));
  }
}

// After the passes of a step: as it is held, a unit and the next one at a time.
void FlatParameters::GatherTrained(const Sharing& sharing, ShardedParameters& result) const {
  int64_t before = 0, gathers = 0, expert_gathers = 0;
  for (int64_t unit = 0; trained_passes_ > 0 && unit <= last_; ++unit) {
    int64_t whole = 0;
    for (const size_t index : of_unit_[static_cast<size_t>(unit)]) {
      const FlatParameter& flat = flat_parameters_[index];
      if (!flat.trained || flat.first_unit != unit || sharing.ranks[index] == 1) continue;
      const int64_t bytes = sharing.elements[index] * Held(flat);
      ShardedTraffic& traffic = flat.of_experts ? result.experts : result;
      traffic.after_payload += std::llround(trained_passes_ * static_cast<double>(bytes));
      ++(flat.of_experts ? expert_gathers : gathers);
      whole += bytes;
    }
    result.gathered = std::max(result.gathered, before + whole);
    before = whole;
  }
  const auto in_a_step = [this](int64_t count) {
    return static_cast<int64_t>(std::ceil(trained_passes_ * static_cast<double>(count)));
  };
  result.after_gathers += in_a_step(gathers);
  result.experts.after_gathers += in_a_step(expert_gathers);
}

// Once a step, as it is held; it stays.
void FlatParameters::GatherForAllBlocks(const Sharing& sharing, ShardedParameters& result) const {
  for (size_t index = 0; index < flat_parameters_.size(); ++index) {
    const FlatParameter& flat = flat_parameters_[index];
    if (!flat.of_all_blocks || sharing.ranks[index] == 1) continue;
    const int64_t bytes = sharing.elements[index] * Held(flat);
    result.after_payload += bytes;
    ++result.after_gathers;
    result.gathered += bytes;
    result.gathered_from_host += bytes;
  }
}

// While one unit's gradients are written, those of the one before are reduced. A token table that
// classifies, and rows of one, have their gradient first and last, and all blocks add to what they
// all compute with.
void FlatParameters::OpenGradients(const Sharing& sharing, ShardedParameters& result) const {
  int64_t throughout = 0, before = 0, most = 0, last = 0;
  for (size_t index = 0; index < flat_parameters_.size(); ++index) {
    const FlatParameter& flat = flat_parameters_[index];
    if (flat.added_to_last && flat.trained) throughout += kF32 * sharing.elements[index];
  }
  for (int64_t unit = last_; unit >= 0; --unit) {
    int64_t bytes = 0;
    for (const size_t index : of_unit_[static_cast<size_t>(unit)]) {
      const FlatParameter& flat = flat_parameters_[index];
      if (!flat.trained || flat.added_to_last || flat.first_unit != unit) continue;
      (flat.last_unit != unit ? throughout : bytes) += kF32 * sharing.elements[index];
    }
    last = before + bytes;
    most = std::max(most, last);
    before = bytes;
  }
  result.open_gradients = {throughout + most, std::max(most, last + throughout)};
}

// Values of a unit are read together, gradients flat parameter by flat parameter.
void FlatParameters::CutFiles(const Sharing& sharing, ShardedParameters& result) const {
  constexpr int64_t kBlock = 4096;  // of a file; memory begins at one
  std::vector<int64_t> values(of_unit_.size());
  bool tied = false;
  ShardedParameters::Filed& filed = result.filed;
  int64_t before = 0;
  for (int64_t unit = last_; unit >= 0; --unit) {
    int64_t held = 0, numbers = 0;
    for (const size_t index : of_unit_[static_cast<size_t>(unit)]) {
      const FlatParameter& flat = flat_parameters_[index];
      if (flat.first_unit != unit) continue;
      tied = tied || flat.last_unit != unit;
      const int64_t part = sharing.elements[index] / sharing.ranks[index];
      values[static_cast<size_t>(unit)] += part * Held(flat);
      if (!flat.trained) continue;
      numbers += part;
      const int64_t in_file = RoundUp(kF32 * part, kBlock);
      filed.gradients.file += in_file;
      held += in_file + kBlock;
    }
    filed.numbers = std::max(filed.numbers, numbers);
    filed.gradients.host = std::max(filed.gradients.host, before + held);
    before = held;
  }
  filed.values = FiledUnits(values, tied, true);
}

ShardedParameters ShardParameters(const ModelSpec& model, const PrecisionRecipe& precision,
                                  DType gathered, int64_t ranks, int64_t tensor, int64_t rows,
                                  int64_t expert_ranks, const TrainSpec& train) {
  return FlatParameters(model, precision, gathered, tensor, rows, expert_ranks, train).Among(ranks);
}

}  // namespace weft
