#include "common/model/sharded_parameters.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "common/dtype.h"
#include "common/model/model_sizes.h"
#include "common/model/parameter_list.h"

namespace weft {
namespace {

constexpr int64_t kF32 = 4;

int64_t RoundUp(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

bool LookedUp(const ParameterInfo& parameter) {
  return parameter.kind == ParameterKind::kTokenEmbedding ||
         parameter.kind == ParameterKind::kPositionEmbedding;
}

}  // namespace

struct ParameterRegions::Sharing {
  int64_t ranks = 1;
  std::vector<int64_t> elements;  ///< Of each region, in whole parts.
};

ParameterRegions::ParameterRegions(const ModelSpec& model, const PrecisionRecipe& precision,
                                   int64_t tensor, int64_t rows)
    : precision_(precision), last_(DistinctBlocks(model) + 1) {
  of_unit_.resize(static_cast<size_t>(last_ + 1));
  std::map<std::tuple<int64_t, int64_t, bool, bool, bool>, size_t> found;
  int64_t unit = 0;
  for (const ParameterInfo& parameter : ParametersOfRank(model, tensor, rows)) {
    if (parameter.block >= 0) {
      unit = parameter.block + 1;
    } else if (unit > 0) {
      unit = last_;
    }
    const bool tied = unit == 0 && IsClassifier(model, parameter);
    const bool looked_up = LookedUp(parameter);
    const bool trained = IsTrained(model, parameter);
    const auto [it, is_new] = found.try_emplace(
        std::tuple(unit, tied ? last_ : unit, parameter.matrix(), looked_up, trained),
        regions_.size());
    if (is_new) {
      of_unit_[static_cast<size_t>(unit)].push_back(regions_.size());
      if (tied) of_unit_[static_cast<size_t>(last_)].push_back(regions_.size());
      regions_.push_back({unit, tied ? last_ : unit, parameter.matrix(), looked_up, trained, 0});
    }
    const int64_t elements = parameter.StoredElements();
    regions_[it->second].elements += RoundUp(elements, 16);
    // All blocks take turns with one set of copies.
    if (parameter.matrix() && (!looked_up || tied) && parameter.block < 1) {
      packed_ += elements;
      const int64_t columns = parameter.shape[1];
      if (elements / columns % 32 == 0 && columns % 32 == 0) packed_in_tiles_ += elements;
    }
    if (trained) first_differentiated_ = std::min(first_differentiated_, unit);
  }
}

ShardedParameters ParameterRegions::Among(int64_t ranks) const {
  ShardedParameters result;
  result.packed = packed_;
  result.packed_in_tiles = packed_in_tiles_;
  Sharing sharing{ranks, {}};
  sharing.elements.reserve(regions_.size());
  for (const Region& region : regions_) {
    const int64_t elements = RoundUp(region.elements, 16 * ranks);
    sharing.elements.push_back(elements);
    result.held += elements / ranks * Held(region);
    if (!region.trained) continue;
    result.gradients += kF32 * elements / ranks;
    result.reduced_payload += kF32 * elements;
    ++result.reductions;
  }
  Gather(sharing, result);
  OpenGradients(sharing, result);
  return result;
}

int64_t ParameterRegions::Held(const Region& region) const {
  return region.matrices ? ElementBytes(precision_.matrices) : kF32;
}

// Bytes of a number as it is gathered for `unit`.
int64_t ParameterRegions::Travels(const Region& region, int64_t unit) const {
  const bool rounds = region.matrices && precision_.products == DType::kBF16 && unit > 0;
  return rounds ? ElementBytes(DType::kBF16) : Held(region);
}

int64_t ParameterRegions::Bytes(const Sharing& sharing, int64_t unit, bool backward,
                                int64_t* count) const {
  int64_t bytes = 0;
  for (const size_t index : of_unit_[static_cast<size_t>(unit)]) {
    const Region& region = regions_[index];
    if (backward && unit == 0 && region.looked_up) continue;
    bytes += sharing.elements[index] * Travels(region, unit);
    if (count != nullptr) ++*count;
  }
  return bytes;
}

// Units in the order of the passes; the last block stays for its backward pass, as the head does.
void ParameterRegions::Gather(const Sharing& sharing, ShardedParameters& result) const {
  const bool stays = first_differentiated_ < last_;
  for (int64_t unit = 0; unit <= last_; ++unit) {
    const int64_t bytes = Bytes(sharing, unit, false, &result.forward_gathers);
    result.forward_payload += bytes;
    const int64_t kept = unit == last_ && stays ? Bytes(sharing, unit - 1, false) : 0;
    const int64_t next = unit < last_ ? Bytes(sharing, unit + 1, false) : kept;
    result.gathered = std::max(result.gathered, bytes + next);
  }
  for (int64_t unit = last_ - 2; unit >= first_differentiated_; --unit) {
    const int64_t bytes = Bytes(sharing, unit, true, &result.backward_gathers);
    result.backward_payload += bytes;
    result.gathered = std::max(result.gathered, bytes + Bytes(sharing, unit + 1, true));
  }
}

// While one unit's gradients are written, those of the one before are reduced. A token table that
// classifies has its gradient first and last.
void ParameterRegions::OpenGradients(const Sharing& sharing, ShardedParameters& result) const {
  int64_t throughout = 0, before = 0, most = 0;
  for (int64_t unit = last_; unit >= 0; --unit) {
    int64_t bytes = 0;
    for (const size_t index : of_unit_[static_cast<size_t>(unit)]) {
      const Region& region = regions_[index];
      if (!region.trained || region.first_unit != unit) continue;
      (region.last_unit != unit ? throughout : bytes) += kF32 * sharing.elements[index];
    }
    most = std::max(most, before + bytes);
    before = bytes;
  }
  result.open_gradients = throughout + most;
}

ShardedParameters ShardParameters(const ModelSpec& model, const PrecisionRecipe& precision,
                                  int64_t ranks, int64_t tensor, int64_t rows) {
  return ParameterRegions(model, precision, tensor, rows).Among(ranks);
}

}  // namespace weft
