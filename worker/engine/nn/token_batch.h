#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/engine/data/batch.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// Memory for the tensors of batches.
class BatchStage {
 public:
  virtual ~BatchStage() = default;

  struct Space {
    Tensor tensor;         ///< u8, of at least the size that was asked for.
    void* host = nullptr;  ///< Where to put its content.
  };
  virtual Result<Space> Take(Context& context, size_t bytes) = 0;

  /// Says that the content of `space` is complete: copies `bytes` of it to where the kernels read
  /// them.
  virtual Status Send(Context& context, const Space& space, size_t bytes) = 0;
};

/// A Batch where the kernels can read it. What the batch does not have is an empty Tensor.
struct TokenBatch {
  Tensor tokens;           ///< [count] i32
  Tensor targets;          ///< [count] i32
  Tensor positions;        ///< [count] i32
  Tensor sequence_starts;  ///< [runs + 1] i32
  Tensor token_types;      ///< [count] i32
  Tensor lengths;          ///< [sequences] i32 without padding; none: all rows are full.
  Tensor labels;           ///< [sequences] i32
  Tensor target_rows;      ///< [targets] i32, ascending indices of the positions with targets
  Tensor row_targets;      ///< [targets] i32, what is to be predicted there
  Tensor pixels;           ///< [sequences, channels * height * width] f32
  /// [count] f32 that the gradients of the loss at each position of a causal language model are
  /// multiplied by, from whoever runs it; or none: 1.
  Tensor gradient_weights;
  /// [count] f32 that gets the loss at each position of a causal language model, or none.
  Tensor losses;
  Tensor first_rows;  ///< [sequences] i32, the first position of each; with labels
  Tensor other_rows;  ///< [count - sequences] i32, all others; with pixels
  /// What sequence_starts and positions hold, for the host.
  std::shared_ptr<const std::vector<int32_t>> starts_on_host;
  std::shared_ptr<const std::vector<int32_t>> positions_on_host;
  std::shared_ptr<const std::vector<int32_t>> lengths_on_host;  ///< Of lengths; null: as there.
  /// The same of token_types and target_rows; or null.
  std::shared_ptr<const std::vector<int32_t>> types_on_host;
  std::shared_ptr<const std::vector<int32_t>> target_rows_on_host;
  std::vector<int32_t> sequence_indices;  ///< As Batch has them.
  int64_t sequences = 0;
  int64_t length = 0;          ///< Tokens per row.
  int64_t count = 0;           ///< sequences * length
  int64_t real_tokens = 0;     ///< Of count those that are not padding.
  int64_t target_count = 0;    ///< As Batch has it.
  int64_t parts = 1;           ///< Those of Batch::part_targets.
  int64_t first_sequence = 0;  ///< Index of row 0 in the global batch.
  int64_t first_token = 0;     ///< Index of token 0 in the global batch; keys the dropout masks.

  /// Whether that run of sequence_starts is the padding behind the tokens of a row. One that begins
  /// a row is not, though the row be blank: each row has as many virtual tokens, whatever is in it.
  bool IsPadding(size_t run) const;
  /// How many are not.
  int64_t RunsOfTokens() const;

  struct Extended;
  /// The rows that attention is over, where they are more than those of the blocks; or none.
  std::shared_ptr<const Extended> attended;
  /// Rows for vectors that stand for tokens.
  struct AddedRows {
    int64_t count = 0;           ///< Before each run of sequence_starts but padding.
    int64_t first_position = 0;  ///< Added to the positions of tokens.
    bool ordered = false;        ///< Their own positions are 0, 1, ... in their order; else 0.
  };
  /// Adds them. Their token type is 0, and they count in `lengths`, which there are where each row
  /// is one run and padding: others have rows of different lengths.
  Result<Extended> Extend(Context& context, const AddedRows& rows) const;

  struct Picked;
  /// Some of its sequences, ascending, as blocks read them: without tokens, targets or dropout
  /// keys.
  Result<Picked> Pick(Context& context, const std::vector<int64_t>& sequences) const;

  /// kInvalid when the sizes within `batch` do not agree.
  static Result<TokenBatch> New(Context& context, const Batch& batch, int64_t first_sequence);

  /// Makes a batch whose tensors are in memory that `stage` brings to the device.
  static Result<TokenBatch> New(BatchStage& stage, Context& context, const Batch& batch,
                                int64_t first_sequence);
};

/// A batch with more rows.
struct TokenBatch::Extended {
  /// As blocks or attention read it, and with the rows that heads of encoders read: without tokens,
  /// targets and labels.
  TokenBatch batch;
  Tensor token_rows;       ///< [count of the tokens] i32, which of its rows these are,
  Tensor added_rows;       ///< and [batch.count - that] the others; none: there are none.
  Tensor token_positions;  ///< [count of the tokens] i32
  int64_t runs = 0;        ///< With added rows.
};

/// Sequences of a batch.
struct TokenBatch::Picked {
  TokenBatch batch;
  Tensor rows;  ///< [batch.count] i32, which rows of the whole batch they are.
};

}  // namespace weft::engine
