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

/// The tensor-parallel ranks (Shoeybi et al. 2019, arXiv 1909.08053). Each has some heads of
/// attention, some inner columns of an MLP and some tokens of the vocabulary. Between these
/// products all have the same residual stream, bit for bit. With `sequence` each has a part of its
/// rows there (Korthikanti et al. 2022, arXiv 2205.05198), and all-reduces become reduce-scatters
/// and all-gathers.
///
/// 2-D tensor parallelism is a grid of several rows (the tensor dimensions of AxoNN, Singh et al.
/// 2023, arXiv 2305.13525). The ranks of a column have the same heads, inner columns and tokens,
/// and each of them some features of the residual stream, with the rows or columns of every matrix
/// that belong to them. A product whose input is partitioned over one dimension computes partial
/// sums, to be reduced over it. Its result is partitioned over the other dimension, over which the
/// next product reduces.
class TensorParallel {
 public:
  /// One row. `group`, of two ranks or more, outlives this.
  explicit TensorParallel(Collective* group, bool sequence = false)
      : group_(group), columns_(group), sequence_(sequence) {}

  /// A grid of `rows` rows, each of them successive ranks. All ranks of `group` call it. kInvalid
  /// when they are no divisor of the ranks.
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

  /// This rank's part of `extent` successive things: that of its column. Parts differ in size by
  /// one at most.
  Shard::Range Part(int64_t extent) const {
    return {extent * column() / columns(), extent * (column() + 1) / columns()};
  }
  /// The shard of a tensor whose rows are `blocks`, one under the other. This rank's column has a
  /// part of each block, in whole units of the given rows, for example heads.
  Shard Rows(const std::vector<int64_t>& blocks, int64_t unit = 1) const;
  /// The shard of a matrix by its columns.
  Shard Columns(int64_t extent, int64_t unit = 1) const;

  /// The shards of a tensor with a row, or a column, for each of `width` features of the residual
  /// stream, which the rows of the grid divide; all of it where there is one row.
  Shard FeatureRows(int64_t width) const { return Features(width, 0); }
  Shard FeatureColumns(int64_t width) const { return Features(width, 1); }
  /// Features that are here.
  int64_t Features(int64_t width) const { return width / rows(); }

  /// The first of this rank's rows of a batch of `rows` rows, which sequence parallelism
  /// partitions.
  int64_t FirstRow(int64_t rows) const { return sequence_ ? rows / degree() * rank() : 0; }
  /// kInvalid when sequence parallelism cannot partition that number of rows.
  Status CheckRows(int64_t rows) const;

  /// Replaces each value by its sum over the ranks, added in rank order.
  Status SumScalars(std::span<double> values) const;

  /// Bytes of the groups' buffers for reductions.
  int64_t held_bytes() const;
  /// The accounts of the groups that were split from `group`.
  std::vector<AxisAccount> Accounts() const;

 private:
  Shard Features(int64_t width, int axis) const;

  Collective* group_;
  std::unique_ptr<Collective> rows_;           ///< Null where there is one row.
  std::unique_ptr<Collective> owned_columns_;  ///< Likewise.
  Collective* columns_;
  bool sequence_;
};

/// The input of a column-parallel product: each rank computes its own columns.
struct ShardsInput {
  Value value;
  SavedTensor saved;  ///< For the backward pass of the product: keeps the own rows alone.
};

/// Takes `x`, which all ranks of a row have, as the input of such a product: its gradient is the
/// sum over the row. With sequence() gathers the rows of all ranks, and scatters gradients to their
/// own rows. Does nothing when `ranks` is null or has one column, as below.
Result<ShardsInput> CopyToTensorParallelRegion(Context& context, Tape& tape,
                                               const TensorParallel* ranks, Value x);

/// Reduces the partial sums `x` over the row; with sequence() returns the rank's own rows. In place
/// where that is possible.
Result<Value> ReduceFromTensorParallelRegion(Context& context, Tape& tape,
                                             const TensorParallel* ranks, Value x);

/// Takes `x`, which all ranks of a column have, as the input of a product whose result is
/// partitioned by features: its gradient is the sum over the column. Does nothing when `ranks` is
/// null or has one row, like the two below.
Value CopyToFeatureRegion(Tape& tape, const TensorParallel* ranks, Value x);

/// Reduces over the column what each rank has computed of its features, in place where that is
/// possible.
Result<Value> ReduceFromFeatureRegion(Context& context, Tape& tape, const TensorParallel* ranks,
                                      Value x);

/// Reduces a gradient over the column, not recorded. `beside` runs once, overlapped with the
/// reduction.
Result<Tensor> SumOverFeatures(
    Context& context, const TensorParallel* ranks, Tensor x,
    const std::function<Status()>& beside = [] { return OkStatus(); });

/// Replaces partial gradients (ParameterList::Partial) by their sums, in one all-reduce, with the
/// same bits on all ranks. If `parts` are given, which are the same on all ranks, only those of
/// them.
Status SumPartialGradients(Context& context, const TensorParallel& ranks,
                           const ParameterSet& parameters,
                           std::span<const ParameterPart> parts = {});

}  // namespace weft::engine
