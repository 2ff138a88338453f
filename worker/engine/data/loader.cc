#include "worker/engine/data/loader.h"

#include <algorithm>
#include <string>

#include "common/check.h"
#include "common/number.h"
#include "kernels/cross_entropy/cross_entropy.h"

namespace weft::engine {
namespace {

void CountUp(int32_t from, size_t count, std::vector<int32_t>& out) {
  for (size_t i = 0; i < count; ++i) out.push_back(from + static_cast<int32_t>(i));
}

}  // namespace

TokenLoader::TokenLoader(TokenSpan span, const LoaderOptions& options)
    : span_(std::move(span)), options_(options) {}

Status TokenLoader::Check() const {
  if (options_.objective == Objective::kClassification && !padded()) {
    return InvalidError(
        "classification needs one document a sequence. hint: set data.batching to pad_dynamic, "
        "pad_uniform or pad_fixed");
  }
  if (!options_.form.middle.empty() && !padded()) {
    return InvalidError(
        "pairs of texts need one document a sequence. hint: set data.batching to pad_dynamic, "
        "pad_uniform or pad_fixed");
  }
  if (options_.preference_pairs && !padded()) {
    return InvalidError(
        "preference pairs need one answer a sequence. hint: set data.batching to pad_dynamic, "
        "pad_uniform or pad_fixed");
  }
  if (options_.objective == Objective::kClassification && span_.labels == nullptr) {
    return InvalidError("classification needs labels, which the data do not have");
  }
  return OkStatus();
}

Status TokenLoader::Divide() {
  const auto long_documents =
      options_.shorten_documents || options_.objective == Objective::kClassification
          ? LongDocuments::kShorten
          : LongDocuments::kCut;
  if (padded()) {
    WEFT_ASSIGN_OR_RETURN(pieces_,
                          MakePieces(span_, options_.form, static_cast<uint64_t>(options_.length),
                                     long_documents, options_.objective == Objective::kCausal));
    sequences_ = static_cast<int64_t>(pieces_.size());
    return OkStatus();
  }
  const bool best_fit = options_.batching == Batching::kBestFit;
  if (span_.count == 0) return OkStatus();
  if (best_fit || options_.mask_documents) document_starts_ = span_.DocumentStarts();
  if (best_fit) {
    packed_ = PackBestFit(document_starts_, options_.length, long_documents);
    sequences_ = static_cast<int64_t>(packed_.size());
  } else {
    // When the next token is predicted, the last one is only a target.
    const uint64_t last = options_.objective == Objective::kCausal ? 1 : 0;
    sequences_ = static_cast<int64_t>(span_.count - last) / options_.length;
  }
  return OkStatus();
}

std::vector<TokenRun> TokenLoader::RunsOf(uint64_t row) const {
  if (padded()) return {pieces_[row].first, pieces_[row].second};
  if (options_.batching == Batching::kBestFit) {
    const std::span<const TokenRun> runs = packed_[row];
    return {runs.begin(), runs.end()};
  }
  const auto length = static_cast<uint64_t>(options_.length);
  return {{row * length, static_cast<uint32_t>(length)}};
}

void TokenLoader::LeaveOutUnmaskable() {
  std::vector<bool> special(static_cast<size_t>(options_.vocabulary.size));
  for (int32_t token : options_.vocabulary.special_tokens) {
    special[static_cast<size_t>(token)] = true;
  }
  // Nearly always one of the first tokens of a row is ordinary.
  std::vector<int32_t> block(16);
  auto has_ordinary = [&](const TokenRun& run) {
    for (uint64_t done = 0; done < run.count; done += block.size()) {
      const auto part = std::span(block).first(std::min<uint64_t>(block.size(), run.count - done));
      span_.shard->Read(span_.first + run.first + done, part);
      for (int32_t token : part) {
        if (!special[static_cast<size_t>(token)]) return true;
      }
    }
    return false;
  };
  const auto rows = static_cast<uint64_t>(sequences_);
  std::vector<uint64_t> kept;
  for (uint64_t row = 0; row < rows; ++row) {
    const std::vector<TokenRun> runs = RunsOf(row);
    if (std::any_of(runs.begin(), runs.end(), has_ordinary)) kept.push_back(row);
  }
  KeepRows(std::move(kept));
}

void TokenLoader::LeaveOutWithoutAnswers() {
  std::vector<uint64_t> kept;
  for (uint64_t row = 0; row < static_cast<uint64_t>(sequences_); ++row) {
    if (HasTargets(row)) kept.push_back(row);
  }
  KeepRows(std::move(kept));
}

/// An answer that is cut away altogether, or its text of one token, has no row.
void TokenLoader::LeaveOutIncompletePairs() {
  std::vector<uint64_t> kept;
  for (uint64_t row = 0; row + 1 < pieces_.size(); ++row) {
    const uint64_t document = pieces_[row].document;
    if (document % 2 != 0 || pieces_[row + 1].document != document + 1) continue;
    if (HasTargets(row) && HasTargets(row + 1)) kept.insert(kept.end(), {row, row + 1});
  }
  KeepRows(std::move(kept));
}

bool TokenLoader::HasTargets(uint64_t row) const {
  Batch batch;
  AppendRow(row, batch);
  return std::any_of(batch.targets.begin(), batch.targets.end(),
                     [](int32_t target) { return target != kernels::kIgnoreTarget; });
}

/// Leaves out all rows but these, which are ascending.
void TokenLoader::KeepRows(std::vector<uint64_t> kept) {
  rows_left_out_ = sequences_ - static_cast<int64_t>(kept.size());
  if (rows_left_out_ == 0) return;
  sequences_ = static_cast<int64_t>(kept.size());
  kept_rows_ = std::move(kept);
}

Result<std::unique_ptr<TokenLoader>> TokenLoader::Create(TokenSpan span,
                                                         const LoaderOptions& options) {
  WEFT_CHECK(options.length > 0 && options.global_batch > 0, "sizes must be positive");
  std::unique_ptr<TokenLoader> loader(new TokenLoader(std::move(span), options));
  WEFT_RETURN_IF_ERROR(loader->Check());
  WEFT_RETURN_IF_ERROR(loader->Divide());
  if (options.objective == Objective::kMasked) loader->LeaveOutUnmaskable();
  if (options.preference_pairs) {
    loader->LeaveOutIncompletePairs();
  } else if (loader->span_.answers != nullptr) {
    loader->LeaveOutWithoutAnswers();
  }
  if (loader->sequences_ == 0 && loader->rows_left_out_ > 0) {
    const std::string all = "all " + std::to_string(loader->rows_left_out_);
    if (loader->span_.answers != nullptr) {
      return InvalidError(all +
                          " sequences of the data hold no token of an answer, and nothing is "
                          "left to predict. hint: raise train.sequence_length" +
                          (options.preference_pairs ? "" : ", or set data.loss_on to all"));
    }
    return InvalidError(
        all +
        " sequences of the data are special tokens alone (unknown ones among them), and nothing is "
        "left to predict. hint: give a tokenizer that knows the text");
  }
  if (loader->sequences_ == 0) {
    return InvalidError("the data have " + std::to_string(loader->span_.count) +
                        " tokens, too few for one sequence of " + std::to_string(options.length) +
                        ". hint: give more text, a larger validation_fraction or a shorter "
                        "sequence_length");
  }
  const auto size = static_cast<uint64_t>(loader->sequences_);
  const uint64_t together = options.preference_pairs ? 2 : 1;
  if (options.batching == Batching::kPadUniform && options.shuffle) {
    std::vector<uint32_t> lengths;
    for (uint64_t s = 0; s < size; s += together) {
      const int64_t longest = std::max(loader->RowLength(s), loader->RowLength(s + together - 1));
      lengths.push_back(static_cast<uint32_t>(longest));
    }
    loader->order_ = SequenceOrder::ByLength(
        std::move(lengths), options.seed, static_cast<uint64_t>(options.global_batch) / together);
  } else {
    loader->order_ = SequenceOrder(size / together, options.seed, options.shuffle);
  }
  if (options.objective == Objective::kMasked) {
    loader->masker_.emplace(options.masking, options.vocabulary, options.seed);
  }
  return loader;
}

/// Sequence `number` of the endless run; the order is of pairs where there are pairs.
DrawnSequence TokenLoader::Drawn(uint64_t number) const {
  if (!options_.preference_pairs) return order_->At(number);
  const DrawnSequence pair = order_->At(number / 2);
  return {2 * pair.index + number % 2, pair.epoch};
}

DrawnSequence TokenLoader::SequenceAt(int64_t step, int64_t sequence) const {
  const int64_t first = options_.shuffle ? step * options_.global_batch : 0;
  return Drawn(static_cast<uint64_t>(first + sequence));
}

int64_t TokenLoader::RowLength(uint64_t sequence) const {
  const uint64_t row = RowAt(sequence);
  if (padded()) {
    const Piece& piece = pieces_[row];
    return static_cast<int64_t>(piece.first.count + piece.second.count + options_.form.Overhead());
  }
  if (options_.batching == Batching::kConcatenate) return options_.length;
  int64_t length = 0;
  for (const TokenRun& segment : packed_[row]) length += segment.count;
  return length;
}

int64_t TokenLoader::BatchLength(int64_t longest) const {
  if (options_.batching < Batching::kPadDynamic) return options_.length;
  return std::min(RoundUp(longest, options_.length_multiple), options_.length);
}

PaddingCount TokenLoader::CountPadding(int64_t micro_batch) const {
  PaddingCount count;
  for (int64_t first = 0; first < sequences_; first += micro_batch) {
    const int64_t rows = std::min(micro_batch, sequences_ - first);
    int64_t longest = 0;
    int64_t real = 0;
    for (int64_t s = first; s < first + rows; ++s) {
      const int64_t length = RowLength(Drawn(static_cast<uint64_t>(s)).index);
      longest = std::max(longest, length);
      real += length;
    }
    count.tokens += rows * BatchLength(longest);
    count.padding += rows * BatchLength(longest) - real;
  }
  return count;
}

Result<Batch> TokenLoader::Get(int64_t step, int64_t first_sequence, int64_t count) {
  const int64_t bound = options_.shuffle ? options_.global_batch : sequences_;
  WEFT_CHECK(step >= 0 && first_sequence >= 0 && count >= 0 && first_sequence <= bound - count,
             "sequences outside the batch");
  std::vector<DrawnSequence> drawn;
  Batch batch;
  int64_t longest = 0;
  for (int64_t s = 0; s < count; ++s) {
    drawn.push_back(SequenceAt(step, first_sequence + s));
    const int64_t length = RowLength(drawn.back().index);
    batch.lengths.push_back(static_cast<int32_t>(length));
    if (options_.preference_pairs) {
      batch.sequence_indices.push_back(static_cast<int32_t>(drawn.back().index));
    }
    longest = std::max(longest, length);
  }
  batch.sequences = count;
  batch.length = BatchLength(longest);
  batch.stride = options_.length;
  const auto size = static_cast<size_t>(count * batch.length);
  batch.tokens.reserve(size);
  batch.targets.reserve(size);
  batch.positions.reserve(size);
  for (const DrawnSequence& sequence : drawn) {
    const size_t row = batch.tokens.size();
    const uint64_t stored = RowAt(sequence.index);
    batch.sequence_starts.push_back(static_cast<int32_t>(row));
    AppendRow(stored, batch);
    if (masker_) MaskRow(sequence, row, batch);
    AppendPadding(row, batch);
  }
  batch.sequence_starts.push_back(static_cast<int32_t>(size));
  if (options_.objective == Objective::kClassification) {
    batch.targets.clear();
    batch.target_count = count;
  } else if (options_.preference_pairs) {
    batch.target_count = count;
  } else {
    batch.target_count =
        static_cast<int64_t>(size) -
        std::count(batch.targets.begin(), batch.targets.end(), kernels::kIgnoreTarget);
  }
  return batch;
}

void TokenLoader::AppendRow(uint64_t row, Batch& batch) const {
  if (padded()) {
    AppendPiece(row, batch);
  } else if (options_.batching == Batching::kBestFit) {
    AppendPacked(row, batch);
  } else {
    AppendStream(row, batch);
  }
}

/// A token of the span as what is to be predicted.
int32_t TokenLoader::TargetAt(uint64_t token) const {
  const uint64_t stored = span_.first + token;
  if (span_.answers != nullptr && (*span_.answers)[stored] == 0) return kernels::kIgnoreTarget;
  return (*span_.shard)[stored];
}

void TokenLoader::AppendTokens(uint64_t first, uint64_t count, Batch& batch) const {
  const size_t at = batch.tokens.size();
  const bool has_next = first + count < span_.count;
  // One more token than asked for: the target of the last.
  batch.tokens.resize(at + count + (has_next ? 1 : 0));
  span_.shard->Read(span_.first + first, std::span(batch.tokens).subspan(at));
  batch.targets.insert(batch.targets.end(), batch.tokens.begin() + static_cast<ptrdiff_t>(at) + 1,
                       batch.tokens.end());
  if (!has_next) batch.targets.push_back(kernels::kIgnoreTarget);
  batch.tokens.resize(at + count);
  if (span_.answers == nullptr) return;
  for (uint64_t i = 0; i < count && first + i + 1 < span_.count; ++i) {
    if ((*span_.answers)[span_.first + first + i + 1] == 0) {
      batch.targets[at + i] = kernels::kIgnoreTarget;
    }
  }
}

void TokenLoader::AppendStream(uint64_t row, Batch& batch) const {
  const auto length = static_cast<uint64_t>(options_.length);
  const size_t base = batch.tokens.size();
  const uint64_t first = row * length;
  AppendTokens(first, length, batch);
  if (!options_.mask_documents) {
    CountUp(0, length, batch.positions);
    return;
  }
  auto next = std::upper_bound(document_starts_.begin(), document_starts_.end(), first);
  int32_t position = 0;
  for (uint64_t i = 0; i < length; ++i) {
    if (first + i == *next) {
      ++next;
      batch.sequence_starts.push_back(static_cast<int32_t>(base + i));
      position = 0;
    }
    batch.positions.push_back(position++);
    if (first + i + 1 == *next) batch.targets[base + i] = kernels::kIgnoreTarget;
  }
}

void TokenLoader::AppendPacked(uint64_t row, Batch& batch) const {
  const size_t base = batch.tokens.size();
  for (const TokenRun& segment : packed_[row]) {
    const size_t at = batch.tokens.size();
    if (options_.mask_documents && at > base) {
      batch.sequence_starts.push_back(static_cast<int32_t>(at));
    }
    // A document's last token is followed by its neighbour here, if any, not by the next in the
    // data.
    const bool ends_document = std::binary_search(document_starts_.begin(), document_starts_.end(),
                                                  segment.first + segment.count);
    if (!options_.mask_documents && at > base && batch.targets.back() == kernels::kIgnoreTarget) {
      batch.targets.back() = TargetAt(segment.first);
    }
    AppendTokens(segment.first, segment.count, batch);
    if (ends_document) batch.targets.back() = kernels::kIgnoreTarget;
    CountUp(options_.mask_documents ? 0 : static_cast<int32_t>(at - base), segment.count,
            batch.positions);
  }
}

void TokenLoader::AppendTexts(const Piece& piece, Batch& batch) const {
  const SequenceForm& form = options_.form;
  auto add = [&](const std::vector<int64_t>& tokens) {
    for (int64_t token : tokens) batch.tokens.push_back(static_cast<int32_t>(token));
    batch.targets.resize(batch.tokens.size(), kernels::kIgnoreTarget);
  };
  auto add_text = [&](const TokenRun& text) {
    if (text.count > 0) AppendTokens(text.first, text.count, batch);
  };
  add(form.begin);
  add_text(piece.first);
  if (!piece.goes_on && piece.first.count > 0) batch.targets.back() = kernels::kIgnoreTarget;
  if (form.middle.empty()) {
    add(form.end);
    return;
  }
  add(form.middle);
  if (form.second_type) batch.token_types.resize(batch.tokens.size(), 0);
  add_text(piece.second);
  add(form.end);
  if (form.second_type) batch.token_types.resize(batch.tokens.size(), 1);
}

void TokenLoader::AppendPiece(uint64_t row, Batch& batch) const {
  const size_t base = batch.tokens.size();
  const Piece& piece = pieces_[row];
  AppendTexts(piece, batch);
  CountUp(0, batch.tokens.size() - base, batch.positions);
  if (options_.objective == Objective::kClassification) {
    batch.labels.push_back((*span_.labels)[piece.document]);
  }
}

void TokenLoader::MaskRow(const DrawnSequence& drawn, size_t row, Batch& batch) const {
  masker_->Mask(drawn.index, drawn.epoch, std::span(batch.tokens).subspan(row),
                std::span(batch.targets).subspan(row));
  for (size_t i = row; i < batch.targets.size(); ++i) {
    if (batch.targets[i] != kernels::kIgnoreTarget) {
      batch.target_rows.push_back(static_cast<int32_t>(i));
    }
  }
}

void TokenLoader::AppendPadding(size_t row, Batch& batch) const {
  const size_t end = row + static_cast<size_t>(batch.length);
  const size_t filled = batch.tokens.size();
  if (filled == end) return;
  // A run of its own, so that no real token attends to it.
  batch.sequence_starts.push_back(static_cast<int32_t>(filled));
  batch.tokens.resize(end, options_.padding_token);
  batch.targets.resize(end, kernels::kIgnoreTarget);
  if (!batch.token_types.empty()) batch.token_types.resize(end, 0);
  CountUp(0, end - filled, batch.positions);
  batch.padding_tokens += static_cast<int64_t>(end - filled);
}

}  // namespace weft::engine
