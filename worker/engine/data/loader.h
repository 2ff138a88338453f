#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/formats/sequence_form.h"
#include "common/spec/job_spec.h"
#include "worker/engine/data/batch_source.h"
#include "worker/engine/data/dataset.h"
#include "worker/engine/data/masking.h"
#include "worker/engine/data/order.h"
#include "worker/engine/data/packing.h"
#include "worker/engine/data/pieces.h"

namespace weft::engine {

/// The choices of DataSpec::batching.
enum class Batching : uint8_t { kConcatenate, kBestFit, kPadFixed, kPadDynamic, kPadUniform };

/// What is predicted: the next token, tokens that were masked, or the class of the sequence.
enum class Objective : uint8_t { kCausal, kMasked, kClassification };

/// The objective of a job: model.head, "auto" resolved by the family.
Objective ObjectiveOf(const ModelSpec& model);

/// How a span of tokens becomes sequences.
struct LoaderOptions {
  int64_t length = 0;        ///< Tokens per sequence; with padding the most.
  int64_t global_batch = 1;  ///< Sequences per step, over all ranks.
  uint64_t seed = 0;
  bool shuffle = true;  ///< A new order in each epoch; otherwise the order of the data.
  Batching batching = Batching::kConcatenate;
  bool mask_documents = false;  ///< Runs, positions and targets end with their document.
  int32_t padding_token = 0;    ///< Fills what is left empty.
  int64_t length_multiple =
      1;  ///< Padded micro-batches are rounded up to this, but not past length.
  Objective objective = Objective::kCausal;
  bool shorten_documents = false;  ///< Packed or padded, one that is too long loses its end.
  bool preference_pairs = false;   ///< Two documents each are a prompt with two answers.
  SequenceForm form = {};
  MaskingSpec masking = {};  ///< For kMasked, with the next.
  MaskingVocabulary vocabulary = {};
};

/// Options of the training data of a job.
LoaderOptions TrainLoaderOptions(const JobSpec& job, const DatasetInfo& info);

/// The same for its validation data: in the order of the data, not shuffled.
LoaderOptions ValidationLoaderOptions(const JobSpec& job, const DatasetInfo& info);

/// Tokens of the batches of one epoch.
struct PaddingCount {
  int64_t tokens = 0;   ///< With padding.
  int64_t padding = 0;  ///< Of them.
  double Share() const {
    return tokens > 0 ? static_cast<double>(padding) / static_cast<double>(tokens) : 0;
  }
};

/// Sequences of a token span. Get is a pure function of its arguments: sequence s of step t is
/// number t * global_batch + s of SequenceOrder. It is thread-safe.
///
/// Cut as one stream, sequence i holds tokens [i*T, (i+1)*T) with the tokens after them as targets.
/// With documents masked, positions restart at each document, a run of attention is one document
/// (or the part of it in the sequence), and the last token of a document has no target.
///
/// Padded, a sequence is a document: for classification, for pairs and with shorten_documents one
/// that is too long is shortened, else it is cut into pieces, each with the tokens of the form
/// around it. Rows are padded to `length` (kPadFixed) or to the longest that is asked for at once.
///
/// A span with answers has only their tokens as targets.
///
/// The two rows of a preference pair follow each other, and what the loss counts are whole rows
/// (Batch::sequence_indices); one that has no answer token takes the other with it.
///
/// A row that has nothing to predict is left out, for a micro-batch of such rows would have no
/// loss: masked, one of special tokens alone (unknown ones among them); of a span with answers, one
/// without any.
class TokenLoader : public BatchSource {
 public:
  /// kInvalid when the data do not fill one sequence, or the options ask for what the data do not
  /// have (labels) or a way of batching cannot do (labels or pairs in a stream).
  static Result<std::unique_ptr<TokenLoader>> Create(TokenSpan span, const LoaderOptions& options);

  int64_t Sequences() const override { return sequences_; }
  Result<Batch> Get(int64_t step, int64_t first_sequence, int64_t count) override;

  /// Rows that are left out because they have nothing to predict.
  int64_t rows_left_out() const { return rows_left_out_; }

  /// What an epoch of the training order costs in micro-batches of this size. Unit: tokens.
  PaddingCount CountPadding(int64_t micro_batch) const;

 private:
  TokenLoader(TokenSpan span, const LoaderOptions& options);

  Status Check() const;
  Status Divide();
  void LeaveOutUnmaskable();
  void LeaveOutWithoutAnswers();
  void LeaveOutIncompletePairs();
  bool HasTargets(uint64_t row) const;
  void KeepRows(std::vector<uint64_t> kept);
  void AppendRow(uint64_t row, Batch& batch) const;
  int32_t TargetAt(uint64_t token) const;
  std::vector<TokenRun> RunsOf(uint64_t row) const;
  /// The row of the data that is sequence `s`.
  uint64_t RowAt(uint64_t s) const { return kept_rows_.empty() ? s : kept_rows_[s]; }
  bool padded() const { return options_.batching >= Batching::kPadFixed; }
  int64_t RowLength(uint64_t sequence) const;
  int64_t BatchLength(int64_t longest) const;
  DrawnSequence Drawn(uint64_t number) const;
  DrawnSequence SequenceAt(int64_t step, int64_t sequence) const;
  void AppendStream(uint64_t row, Batch& batch) const;
  void AppendPacked(uint64_t row, Batch& batch) const;
  void AppendPiece(uint64_t row, Batch& batch) const;
  void AppendTexts(const Piece& piece, Batch& batch) const;
  void AppendPadding(size_t row, Batch& batch) const;
  void MaskRow(const DrawnSequence& drawn, size_t row, Batch& batch) const;

  /// Appends tokens [first, first + count) of one document or stream with their successors as
  /// targets, except that a masked document's last token gets none.
  void AppendTokens(uint64_t first, uint64_t count, Batch& batch) const;

  TokenSpan span_;
  LoaderOptions options_;
  std::vector<uint64_t> document_starts_;  ///< Kept when packing, padding or masking needs them.
  PackedSequences packed_;
  std::vector<Piece> pieces_;
  int64_t sequences_ = 0;
  int64_t rows_left_out_ = 0;
  std::vector<uint64_t> kept_rows_;  ///< The rows that are sequences; empty: all are.
  std::optional<SequenceOrder> order_;
  std::optional<TokenMasker> masker_;
};

}  // namespace weft::engine
