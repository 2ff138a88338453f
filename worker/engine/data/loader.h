#pragma once

#include <memory>

#include "common/spec/job_spec.h"
#include "worker/engine/data/batch_source.h"
#include "worker/engine/data/dataset.h"
#include "worker/engine/data/packing.h"

namespace weft::engine {

/// How a span of tokens becomes sequences.
struct LoaderOptions {
  int64_t length = 0;        ///< Tokens per sequence.
  int64_t global_batch = 1;  ///< Sequences per step, over all ranks.
  uint64_t seed = 0;
  bool shuffle = true;          ///< A new order in each epoch; otherwise the order of the data.
  bool best_fit = false;        ///< Whole documents packed, rather than one stream cut.
  bool mask_documents = false;  ///< Runs, positions and targets end with their document.
  int32_t padding_token = 0;    ///< Fills what packing leaves empty.
};

/// Options of the training data of a job.
LoaderOptions TrainLoaderOptions(const JobSpec& job, const DatasetInfo& info);

/// The same for its validation data: in the order of the data, not shuffled.
LoaderOptions ValidationLoaderOptions(const JobSpec& job, const DatasetInfo& info);

/// Sequences of a token span. Get is a pure function of its arguments: sequence s of step t is
/// number t * global_batch + s of an endless run of epochs, each a permutation of the sequences
/// drawn from (seed, epoch). It is thread-safe.
///
/// Cut as one stream, sequence i holds tokens [i*T, (i+1)*T) with the tokens after them as targets.
/// With documents masked, positions restart at each document, a run of attention is one document
/// (or the part of it in the sequence), and the last token of a document has no target.
class TokenLoader : public BatchSource {
 public:
  /// kInvalid when the data do not fill one sequence.
  static Result<std::unique_ptr<TokenLoader>> Create(TokenSpan span, const LoaderOptions& options);

  int64_t Sequences() const override { return sequences_; }
  Result<Batch> Get(int64_t step, int64_t first_sequence, int64_t count) override;

 private:
  TokenLoader(TokenSpan span, const LoaderOptions& options);

  uint64_t SequenceAt(int64_t step, int64_t sequence) const;
  void AppendStream(uint64_t sequence, Batch& batch) const;
  void AppendPacked(uint64_t sequence, Batch& batch) const;

  /// Appends tokens [first, first + count) of one document or stream with their successors as
  /// targets, except that a masked document's last token gets none.
  void AppendTokens(uint64_t first, uint64_t count, Batch& batch) const;

  TokenSpan span_;
  LoaderOptions options_;
  std::vector<uint64_t> document_starts_;  ///< Kept when packing or masking needs them.
  PackedSequences packed_;
  int64_t sequences_ = 0;
};

}  // namespace weft::engine
