#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker/engine/autograd/tape.h"
#include "worker/engine/comm/collective.h"
#include "worker/engine/nn/parameter_part.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/tensor/shard.h"

namespace weft::engine {

/// The ranks that share each matrix of a model (Shoeybi et al. 2019, arXiv 1909.08053): of
/// attention each has some heads, of an MLP some inner columns, of the vocabulary some tokens.
/// Between these products all have the same residual stream, bit for bit. With `sequence` each has
/// a part of its rows there (Korthikanti et al. 2022, arXiv 2205.05198), and all-reduces become
/// reduce-scatters and all-gathers.
class TensorParallel {
 public:
  /// `group`, of two ranks or more, outlives this.
  explicit TensorParallel(Collective* group, bool sequence = false)
      : group_(group), sequence_(sequence) {}

  int64_t rank() const { return group_->rank(); }
  int64_t degree() const { return group_->size(); }
  bool sequence() const { return sequence_; }
  Collective& group() const { return *group_; }

  /// What of `extent` things in a row is here; parts differ in size by one at most.
  Shard::Range Part(int64_t extent) const {
    return {extent * rank() / degree(), extent * (rank() + 1) / degree()};
  }
  /// The shard of a tensor whose rows are `blocks`, one under the other, of each of which this rank
  /// has a part of whole units, which are so many rows: heads, say.
  Shard Rows(const std::vector<int64_t>& blocks, int64_t unit = 1) const;
  /// The shard of a matrix with so many columns.
  Shard Columns(int64_t extent, int64_t unit = 1) const;

  /// Of `rows` rows of a batch, which `sequence` deals out, the first that is here.
  int64_t FirstRow(int64_t rows) const { return sequence_ ? rows / degree() * rank() : 0; }
  /// kInvalid when `sequence` cannot deal out so many.
  Status CheckRows(int64_t rows) const;

  /// Replaces each value by its sum over the ranks, added in rank order.
  Status SumScalars(std::span<double> values) const;

 private:
  Collective* group_;
  bool sequence_;
};

/// The input of a product of which each rank computes its own columns.
struct ShardsInput {
  Value value;
  SavedTensor saved;  ///< For the backward pass of the product: keeps the own rows alone.
};

/// `x`, which all ranks have, as the input of such a product: its gradient is the sum over the
/// ranks. With sequence(), the rows of all ranks, and gradients are of the own rows again. Nothing
/// at all when `ranks` is null, as below.
Result<ShardsInput> EnterShards(Context& context, Tape& tape, const TensorParallel* ranks, Value x);

/// The sum over the ranks of `x`, of which each has computed a summand; with sequence() the own
/// rows of it. In place where that is possible.
Result<Value> LeaveShards(Context& context, Tape& tape, const TensorParallel* ranks, Value x);

/// Replaces the gradients of which each rank has a summand (ParameterSet::Partial) by their sums,
/// in one all-reduce; the same bits on all ranks. Of those in `parts` alone where there are some,
/// the same on all ranks.
Status SumPartialGradients(Context& context, const TensorParallel& ranks,
                           const ParameterSet& parameters,
                           std::span<const ParameterPart> parts = {});

}  // namespace weft::engine
