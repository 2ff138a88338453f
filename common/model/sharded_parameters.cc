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

/// As the engine has it (ParameterSet::Region).
struct Region {
  int64_t first_unit = 0;
  int64_t last_unit = 0;
  bool matrices = false;
  bool looked_up = false;
  bool trained = false;
  int64_t elements = 0;
};

int64_t RoundUp(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

bool LookedUp(const ParameterInfo& parameter) {
  return parameter.kind == ParameterKind::kTokenEmbedding ||
         parameter.kind == ParameterKind::kPositionEmbedding;
}

class Sharding {
 public:
  Sharding(const ModelSpec& model, const PrecisionRecipe& precision, int64_t ranks, int64_t tensor,
           int64_t rows)
      : precision_(precision), ranks_(ranks), last_(DistinctBlocks(model) + 1) {
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
        regions_.push_back({unit, tied ? last_ : unit, parameter.matrix(), looked_up, trained, 0});
      }
      const int64_t elements = parameter.StoredElements();
      regions_[it->second].elements += RoundUp(elements, 16);
      // All blocks take turns with one set of copies.
      if (parameter.matrix() && (!looked_up || tied) && parameter.block < 1) {
        result_.packed += elements;
        const int64_t columns = parameter.shape[1];
        if (elements / columns % 32 == 0 && columns % 32 == 0) result_.packed_in_tiles += elements;
      }
      if (trained) first_differentiated_ = std::min(first_differentiated_, unit);
    }
    for (Region& region : regions_) region.elements = RoundUp(region.elements, 16 * ranks_);
  }

  ShardedParameters Result() {
    for (const Region& region : regions_) {
      result_.held += region.elements / ranks_ * Held(region);
      if (!region.trained) continue;
      result_.gradients += kF32 * region.elements / ranks_;
      result_.reduced_payload += kF32 * region.elements;
      ++result_.reductions;
    }
    Gather();
    OpenGradients();
    return result_;
  }

 private:
  int64_t Held(const Region& region) const {
    return region.matrices ? ElementBytes(precision_.matrices) : kF32;
  }

  /// Bytes of a number as it is gathered for `unit`.
  int64_t Travels(const Region& region, int64_t unit) const {
    const bool rounds = region.matrices && precision_.products == DType::kBF16 && unit > 0;
    return rounds ? ElementBytes(DType::kBF16) : Held(region);
  }

  int64_t Bytes(int64_t unit, bool backward, int64_t* count = nullptr) const {
    int64_t bytes = 0;
    for (const Region& region : regions_) {
      if (region.first_unit != unit && region.last_unit != unit) continue;
      if (backward && unit == 0 && region.looked_up) continue;
      bytes += region.elements * Travels(region, unit);
      if (count != nullptr) ++*count;
    }
    return bytes;
  }

  // Units in the order of the passes; the last block stays for its backward pass, as the head does.
  void Gather() {
    const bool stays = first_differentiated_ < last_;
    for (int64_t unit = 0; unit <= last_; ++unit) {
      const int64_t bytes = Bytes(unit, false, &result_.forward_gathers);
      result_.forward_payload += bytes;
      const int64_t kept = unit == last_ && stays ? Bytes(unit - 1, false) : 0;
      const int64_t next = unit < last_ ? Bytes(unit + 1, false) : kept;
      result_.gathered = std::max(result_.gathered, bytes + next);
    }
    for (int64_t unit = last_ - 2; unit >= first_differentiated_; --unit) {
      const int64_t bytes = Bytes(unit, true, &result_.backward_gathers);
      result_.backward_payload += bytes;
      result_.gathered = std::max(result_.gathered, bytes + Bytes(unit + 1, true));
    }
  }

  // While one unit's gradients are written, those of the one before are reduced. A token table that
  // classifies has its gradient first and last.
  void OpenGradients() {
    int64_t throughout = 0, before = 0, most = 0;
    for (int64_t unit = last_; unit >= 0; --unit) {
      int64_t bytes = 0;
      for (const Region& region : regions_) {
        if (!region.trained || region.first_unit != unit) continue;
        (region.last_unit != unit ? throughout : bytes) += kF32 * region.elements;
      }
      most = std::max(most, before + bytes);
      before = bytes;
    }
    result_.open_gradients = throughout + most;
  }

  const PrecisionRecipe& precision_;
  const int64_t ranks_;
  const int64_t last_;  ///< Unit: the head.
  std::vector<Region> regions_;
  int64_t first_differentiated_ = INT64_MAX;
  ShardedParameters result_;
};

}  // namespace

ShardedParameters ShardParameters(const ModelSpec& model, const PrecisionRecipe& precision,
                                  int64_t ranks, int64_t tensor, int64_t rows) {
  return Sharding(model, precision, ranks, tensor, rows).Result();
}

}  // namespace weft
