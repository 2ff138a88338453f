#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "kernels/affine/affine.h"
#include "kernels/elementwise/elementwise.h"
#include "worker/engine/optim/optimizer_state.h"
#include "worker/engine/techniques/rewarming/rewarming_cost.h"
#include "worker/engine/techniques/technique.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

/// Those of `added`, rows (axis 0) or columns (axis 1) of the whole tensor, that are here.
std::vector<bool> HeldOf(const std::vector<bool>& added, int axis, const Shard& shard) {
  std::vector<bool> held;
  const auto append = [&](const Shard::Range& range) {
    held.insert(held.end(), added.begin() + range.begin, added.begin() + range.end);
  };
  if (axis == 1 && shard.across.size() > 0) {
    append(shard.across);
    return held;
  }
  if (shard.whole() || shard.axis != axis) return added;
  for (const Shard::Range& range : shard.ranges) append(range);
  return held;
}

/// Successive numbers in rows that were there before growth: some whole rows, or a part of one.
struct OldRows {
  int64_t begin = 0;  ///< In the part of the parameter.
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t first_column = 0;
};

/// Those of numbers [first, first + count) of a tensor in which these rows are new.
std::vector<OldRows> OldRowsOf(const std::vector<bool>& added_rows, int64_t columns, int64_t first,
                               int64_t count) {
  std::vector<OldRows> all;
  const auto size = static_cast<int64_t>(added_rows.size());
  for (int64_t row = 0, next = 0; row < size; row = next) {
    const bool added = added_rows[static_cast<size_t>(row)];
    for (next = row + 1; next < size && added_rows[static_cast<size_t>(next)] == added;) ++next;
    if (added) continue;
    int64_t begin = std::max(first, row * columns);
    const int64_t end = std::min(first + count, next * columns);
    while (begin < end) {
      OldRows run = {begin - first, 1, 0, begin % columns};
      run.columns = std::min(columns - run.first_column, end - begin);
      if (run.columns == columns) run.rows = (end - begin) / columns;
      begin += run.rows * run.columns;
      all.push_back(run);
    }
  }
  return all;
}

/// The weights of before an update, of the parts in which something is new. Not thread-safe.
class PartsWithAdded {
 public:
  /// Takes memory on the device, where `parts` are updated.
  Status Start(Context& context, const ParameterSet& parameters,
               std::span<const ParameterPart> parts,
               const std::map<std::string, AddedPositions>& added) {
    std::map<std::vector<float>, int64_t> places;  // in `kept`, of the columns that are held
    std::vector<float> kept;
    for (const ParameterPart& part : parts) {
      const Parameter& parameter = parameters[part.index];
      const auto found = added.find(parameter.name);
      if (found == added.end() || part.count() == 0) continue;
      const std::vector<bool> rows = HeldOf(found->second.rows, 0, parameter.shard);
      const std::vector<bool> columns = HeldOf(found->second.columns, 1, parameter.shard);
      const auto width = static_cast<int64_t>(columns.size());
      WEFT_CHECK(static_cast<int64_t>(rows.size()) * width == parameter.shape.Elements(),
                 "growth has other sizes than " + parameter.name);
      const std::vector<float> factors(columns.begin(), columns.end());
      const auto [place, is_new] = places.emplace(factors, std::ssize(kept));
      if (is_new) kept.insert(kept.end(), factors.begin(), factors.end());
      parts_.push_back({.weights = part.value.Flat(),
                        .copy = copies_.Add("rewarming/" + parameter.name, parameters, part),
                        .first_column = place->second,
                        .old = OldRowsOf(rows, width, part.first, part.count())});
    }
    if (parts_.empty()) return OkStatus();
    WEFT_RETURN_IF_ERROR(copies_.Allocate(context));
    WEFT_ASSIGN_OR_RETURN(added_columns_, Tensor::New(context, Component::kOptimizer, DType::kF32,
                                                      {std::ssize(kept)}));
    return Upload(context.stream, kept.data(), added_columns_);
  }

  /// The weights are those before the update.
  Status Remember(const Stream& stream) const {
    for (const Part& part : parts_) {
      WEFT_RETURN_IF_ERROR(
          kernels::Cast(stream, {.x = part.weights, .y = copies_[part.copy].Flat()}));
    }
    return OkStatus();
  }

  /// The weights have been updated: makes the update of what is new `factor` times what it was. Of
  /// the other numbers it adds zero, so that they stay.
  Status Scale(const Stream& stream, float factor) const {
    for (const Part& part : parts_) {
      const TensorView change = copies_[part.copy].Flat();
      WEFT_RETURN_IF_ERROR(
          kernels::AddScaled(stream, {.x = part.weights, .y = change, .factor = 1, .keep = -1}));
      for (const OldRows& old : part.old) {
        const TensorView numbers(change.As<float>() + old.begin, DType::kF32,
                                 {old.rows, old.columns}, change.device);
        WEFT_RETURN_IF_ERROR(kernels::AffineForward(
            stream,
            {.x = numbers,
             .scale = added_columns_.Elements(part.first_column + old.first_column, old.columns),
             .shift = {},
             .y = numbers}));
      }
      WEFT_RETURN_IF_ERROR(
          kernels::AddScaled(stream, {.x = change, .y = part.weights, .factor = factor - 1}));
    }
    return OkStatus();
  }

 private:
  struct Part {
    TensorView weights;
    size_t copy = 0;           ///< In copies_.
    int64_t first_column = 0;  ///< In added_columns_.
    std::vector<OldRows> old;
  };

  std::vector<Part> parts_;
  OptimizerState copies_;
  Tensor added_columns_;  ///< Of each kind of rows: 1 where a column is new, 0 elsewhere.
};

/// Rows and columns that growth has added have updates of their own at first (Yu et al. 2026, arXiv
/// 2602.02472): those of the optimizer times a factor of the step, the decay of weights included.
/// The state of the optimizer is as without. All else follows from the step, so that checkpoints
/// have nothing of it.
class Rewarming : public Technique {
 public:
  Rewarming(const ModelSpec& model, const PhaseGrowth& growth)
      : growth_(growth.growth),
        added_(AddedPositionsOf(WithSizesOf(growth.before, model), model)) {}

  Status OnTraining(const TrainingParts& parts) override {
    parts_ = parts;
    return OkStatus();
  }

  bool RunsAlone(int64_t step) const override { return IsRewarming(growth_, step); }

  Status BeforeUpdate(Context& state, const PendingUpdate& update) override {
    step_ = update.step;
    if (!IsRewarming(growth_, step_)) {
      rewarmed_.reset();  // where the last step of it was skipped, or made no update
      return OkStatus();
    }
    ProfileScope scope(state.profiler, "copy weights before the update");
    if (!rewarmed_) WEFT_RETURN_IF_ERROR(Start(state));
    return rewarmed_->Remember(state.stream);
  }

  Status AfterUpdate(Context& state) override {
    if (!rewarmed_) return OkStatus();
    ProfileScope scope(state.profiler, "scale updates of what was added");
    WEFT_RETURN_IF_ERROR(
        rewarmed_->Scale(state.stream, static_cast<float>(UpdateOfAdded(growth_, step_))));
    if (!IsRewarming(growth_, step_ + 1)) rewarmed_.reset();
    return OkStatus();
  }

 private:
  Status Start(Context& state) {
    WEFT_CHECK(parts_.updated.size() == 1 && !parts_.updated[0].in_host_memory_pool,
               "updates are made on the device (RewarmingCost::refusals)");
    const std::vector<ParameterPart>& own = parts_.updated[0].parts;
    return rewarmed_.emplace().Start(state, *parts_.parameters,
                                     own.empty() ? TrainedParts(*parts_.parameters) : own, added_);
  }

  GrowthSpec growth_;
  std::map<std::string, AddedPositions> added_;
  TrainingParts parts_;
  std::optional<PartsWithAdded> rewarmed_;  ///< While it may be asked for.
  int64_t step_ = 0;
};

}  // namespace

std::unique_ptr<Technique> NewRewarming(const TechniqueInputs& inputs) {
  if (inputs.growth == nullptr) return nullptr;
  return std::make_unique<Rewarming>(inputs.model, *inputs.growth);
}

}  // namespace weft::engine
