#pragma once

#include <cstdint>
#include <functional>
#include <memory>
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
///
/// Of a grid of several rows (the tensor dimensions of AxoNN, Singh et al. 2023, arXiv 2305.13525)
/// the ranks of a column have the same heads, inner columns and tokens, and each of them some
/// features of the residual stream, with the rows or columns of every matrix that belong to them.
/// A product whose input is dealt out over one dimension leaves summands to be added over it, and
/// its result dealt out over the other, over which the next product adds.
class TensorParallel {
 public:
  /// One row. `group`, of two ranks or more, outlives this.
  explicit TensorParallel(Collective* group, bool sequence = false)
      : group_(group), columns_(group), sequence_(sequence) {}

  /// A grid of so many rows, each of them successive ranks. All ranks of `group` call it. kInvalid
  /// when they are no divisor of the ranks, or not 1 with `sequence`.
  static Result<TensorParallel> New(Collective* group, bool sequence, int64_t rows);

  int64_t rank() const { return group_->rank(); }
  int64_t degree() const { return group_->size(); }
  bool sequence() const { return sequence_; }
  Collective& group() const { return *group_; }

  int64_t rows() const { return rows_ == nullptr ? 1 : rows_->size(); }
  int64_t row() const { return rows_ == nullptr ? 0 : rows_->rank(); }
  int64_t columns() const { return columns_->size(); }
  int64_t column() const { return columns_->rank(); }
  /// The ranks of this one's row, or null when it is alone.
  Collective* along_row() const { return columns() > 1 ? columns_ : nullptr; }
  /// The ranks of this one's column, or null likewise.
  Collective* along_column() const { return rows_.get(); }

  /// What of `extent` things in a row is here: the part of the column. Parts differ in size by one
  /// at most.
  Shard::Range Part(int64_t extent) const {
    return {extent * column() / columns(), extent * (column() + 1) / columns()};
  }
  /// The shard of a tensor whose rows are `blocks`, one under the other, of each of which this
  /// rank's column has a part of whole units, which are so many rows: heads, say.
  Shard Rows(const std::vector<int64_t>& blocks, int64_t unit = 1) const;
  /// The shard of a matrix with so many columns.
  Shard Columns(int64_t extent, int64_t unit = 1) const;

  /// The shards of a tensor with a row, or a column, for each of `width` features of the residual
  /// stream, which the rows of the grid divide; all of it where there is one row.
  Shard FeatureRows(int64_t width) const { return Features(width, 0); }
  Shard FeatureColumns(int64_t width) const { return Features(width, 1); }
  /// Features that are here.
  int64_t Features(int64_t width) const { return width / rows(); }

  /// Of `rows` rows of a batch, which `sequence` deals out, the first that is here.
  int64_t FirstRow(int64_t rows) const { return sequence_ ? rows / degree() * rank() : 0; }
  /// kInvalid when `sequence` cannot deal out so many.
  Status CheckRows(int64_t rows) const;

  /// Replaces each value by its sum over the ranks, added in rank order.
  Status SumScalars(std::span<double> values) const;

  /// Bytes that the groups keep for their reductions.
  int64_t held_bytes() const;
  /// The books of the groups that were made of `group`.
  std::vector<AxisAccount> Accounts() const;

 private:
  Shard Features(int64_t width, int axis) const;

  Collective* group_;
  std::unique_ptr<Collective> rows_;           ///< Null where there is one row.
  std::unique_ptr<Collective> owned_columns_;  ///< Likewise.
  Collective* columns_;
  bool sequence_;
};

/// The input of a product of which each rank computes its own columns.
struct ShardsInput {
  Value value;
  SavedTensor saved;  ///< For the backward pass of the product: keeps the own rows alone.
};

/// `x`, which all ranks of a row have, as the input of such a product: its gradient is the sum over
/// the row. With sequence(), the rows of all ranks, and gradients are of the own rows again.
/// Nothing at all when `ranks` is null or has one column, as below.
Result<ShardsInput> EnterShards(Context& context, Tape& tape, const TensorParallel* ranks, Value x);

/// The sum over the row of `x`, of which each rank has computed a summand; with sequence() the own
/// rows of it. In place where that is possible.
Result<Value> LeaveShards(Context& context, Tape& tape, const TensorParallel* ranks, Value x);

/// The same for a product whose result is dealt out by features: its input, which all ranks of a
/// column have. Nothing at all when `ranks` is null or has one row, as the two below.
Value EnterFeatures(Tape& tape, const TensorParallel* ranks, Value x);

/// The sum over the column of what each rank has computed of its features, in place where that is
/// possible.
Result<Value> LeaveFeatures(Context& context, Tape& tape, const TensorParallel* ranks, Value x);

/// The same of a gradient, not recorded. `beside` runs once, while the sum is on its way.
Result<Tensor> SumOverFeatures(
    Context& context, const TensorParallel* ranks, Tensor x,
    const std::function<Status()>& beside = [] { return OkStatus(); });

/// Replaces the gradients of which each rank has a summand (ParameterSet::Partial) by their sums,
/// in one all-reduce; the same bits on all ranks. Of those in `parts` alone where there are some,
/// the same on all ranks.
Status SumPartialGradients(Context& context, const TensorParallel& ranks,
                           const ParameterSet& parameters,
                           std::span<const ParameterPart> parts = {});

}  // namespace weft::engine
