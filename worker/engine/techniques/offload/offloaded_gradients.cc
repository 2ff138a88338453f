#include "worker/engine/techniques/offload/offloaded_gradients.h"

#include <algorithm>
#include <utility>

#include "kernels/elementwise/elementwise.h"
#include "worker/engine/nn/parameter_file.h"
#include "worker/engine/optim/gradient_norm.h"
#include "worker/engine/tensor/host_memory_pool.h"

namespace weft::engine {
namespace {

// One bucket is on its way, to the other ranks and down, during the backward pass of the next one;
// another may wait behind it. With sharded values the matrices, the vectors and the experts of
// expert-parallel ranks of a block are a bucket each; adapters alone are one.
size_t MostInFlight(const ParameterSet& parameters) {
  if (!parameters.values_sharded()) return 2;
  std::vector<int64_t> of_unit(static_cast<size_t>(parameters.units()));
  for (const ParameterSet::FlatParameter& flat : parameters.flat_parameters()) {
    if (flat.trained) ++of_unit[static_cast<size_t>(flat.first_unit)];
  }
  if (*std::max_element(of_unit.begin(), of_unit.end()) <= 1) return 2;
  return parameters.expert_ranks() > 1 ? 5 : 3;
}

}  // namespace

OffloadedGradients::OffloadedGradients(Context& context, ParameterSet* parameters,
                                       int64_t bucket_bytes, BucketReducer* ranks)
    : context_(&context),
      parameters_(parameters),
      ranks_(ranks),
      layout_(CutBuckets(*parameters, bucket_bytes)),
      memory_(layout_.buckets.size()),
      last_download_(layout_.buckets.size(), 0),
      sums_below_(layout_.buckets.size(), false),
      kept_(layout_.buckets.size(), false),
      most_in_flight_(MostInFlight(*parameters)),
      file_(parameters->file()) {
  for (int64_t i = 0; i < parameters->size(); ++i) {
    const int64_t bucket = layout_.bucket_of[static_cast<size_t>(i)];
    if (bucket < 0) continue;
    kept_[static_cast<size_t>(bucket)] = !parameters->on_host(i);
    const int64_t first = parameters->GradientOffset(i);
    // Without padding, which is zero in the host memory pool and undefined on the device. Stacked
    // ones are one piece.
    const ParameterSet::Range range = {first, first + (*parameters)[i].shape.Elements()};
    if (!pieces_.empty() && pieces_.back().range.end == range.begin &&
        pieces_.back().bucket == bucket) {
      pieces_.back().range.end = range.end;
    } else {
      pieces_.push_back({bucket, range});
    }
  }
  if (file_ == nullptr) return;
  std::vector<ParameterFile::Bucket> buckets;
  for (int64_t b = 0; b < std::ssize(layout_.buckets); ++b) {
    const GradientBucket& all = layout_.buckets[static_cast<size_t>(b)];
    buckets.push_back(
        {0, ReducesEveryPass() ? ranks_->Kept(b) : ParameterSet::Range{all.begin, all.end}});
  }
  for (int64_t i = 0; i < parameters->size(); ++i) {
    const int64_t bucket = layout_.bucket_of[static_cast<size_t>(i)];
    if (bucket >= 0) buckets[static_cast<size_t>(bucket)].unit = (*parameters)[i].unit;
  }
  cut_ = file_->CutGradients(std::move(buckets), CountedGradients(*parameters, parts()));
}

OffloadedGradients::~OffloadedGradients() {
  (void)context_->host->down().WaitForAll();
  (void)context_->host->up().WaitForAll();
  if (file_ != nullptr && cut_.ok()) (void)file_->gradients().FinishWrites();
}

std::span<const ParameterPart> OffloadedGradients::parts() const {
  return ranks_ == nullptr ? std::span<const ParameterPart>() : ranks_->parts();
}

Status OffloadedGradients::GradientsMoved() {
  return ranks_ == nullptr ? OkStatus() : ranks_->GradientsMoved();
}

Status OffloadedGradients::SumOverParts(std::span<double> values) {
  return ranks_ == nullptr ? OkStatus() : ranks_->SumOverParts(values);
}

Result<std::vector<float>> OffloadedGradients::GatherParts(int64_t index,
                                                           std::span<const float> own) {
  return ranks_ == nullptr ? std::vector<float>(own.begin(), own.end())
                           : ranks_->GatherParts(index, own);
}

Status OffloadedGradients::GatherParameters() {
  return ranks_ == nullptr ? OkStatus() : ranks_->GatherParameters();
}

Status OffloadedGradients::SumScalars(std::span<double> values) {
  return ranks_ == nullptr ? OkStatus() : ranks_->SumScalars(values);
}

Status OffloadedGradients::Maximum(const TensorView& values) {
  return ranks_ == nullptr ? OkStatus() : ranks_->Maximum(values);
}

Status OffloadedGradients::Begin(bool last_micro_batch) {
  WEFT_RETURN_IF_ERROR(cut_);
  last_micro_batch_ = last_micro_batch;
  if (file_ != nullptr) {
    // Nothing is being written: sums of earlier micro-batches count no more.
    WEFT_RETURN_IF_ERROR(file_->gradients().FinishWrites());
    last_micro_batch ? file_->norm().Start() : file_->norm().Stop();
  }
  opens_first_ = true;
  missing_.clear();
  for (const GradientBucket& bucket : layout_.buckets) missing_.push_back(bucket.parameters);
  return OkStatus();
}

OffloadedGradients::Slice OffloadedGradients::InFile(int64_t bucket,
                                                     const ParameterSet::Range& range) const {
  return {range, file_->GradientAt(static_cast<size_t>(bucket), range.begin)};
}

OffloadedGradients::Slice OffloadedGradients::Whole(int64_t bucket) const {
  const GradientBucket& all = layout_.buckets[static_cast<size_t>(bucket)];
  if (file_ != nullptr) return InFile(bucket, {all.begin, all.end});
  return {{all.begin, all.end}, parameters_->HeldGradients({all.begin, all.end}).As<float>()};
}

OffloadedGradients::Slice OffloadedGradients::Kept(int64_t bucket) const {
  if (file_ != nullptr) return InFile(bucket, ranks_->Kept(bucket));
  return {ranks_->Kept(bucket), ranks_->Sums(bucket).As<float>()};
}

template <class Move>
Status OffloadedGradients::ForEachRun(int64_t bucket, float* memory, const Slice& slice,
                                      Move&& move) const {
  float* const above = memory - layout_.buckets[static_cast<size_t>(bucket)].begin;
  float* const below = slice.below - slice.range.begin;
  for (const Piece& piece : pieces_) {
    const int64_t begin = std::max(piece.range.begin, slice.range.begin);
    const int64_t end = std::min(piece.range.end, slice.range.end);
    if (piece.bucket != bucket || begin >= end) continue;
    WEFT_RETURN_IF_ERROR(move(above + begin, below + begin, end - begin));
  }
  return OkStatus();
}

Status OffloadedGradients::Open(int64_t bucket) {
  HostMemoryPool& host = *context_->host;
  const auto b = static_cast<size_t>(bucket);
  const GradientBucket& all = layout_.buckets[b];
  if (kept_[b]) {
    memory_[b] = parameters_->HeldGradients({all.begin, all.end});
    return OkStatus();
  }
  const Stream& stream = context_->stream;
  if (sums_below_[b]) WEFT_RETURN_IF_ERROR(host.down().Await(stream, last_download_[b]));
  // What the pass before has left went during this one's forward pass.
  const size_t most = std::exchange(opens_first_, false) ? 1 : most_in_flight_;
  while (in_flight_.size() >= most) {
    WEFT_RETURN_IF_ERROR(host.down().Await(stream, in_flight_.front().job));
    in_flight_.pop_front();
    if (file_ != nullptr) {
      WEFT_RETURN_IF_ERROR(file_->gradients().FinishWrites(in_flight_.size()));
    }
  }
  WEFT_ASSIGN_OR_RETURN(memory_[b], Tensor::New(*context_, Component::kGradients, DType::kF32,
                                                {all.end - all.begin}));
  if (sums_below_[b] && carries_sums()) {
    if (file_ != nullptr) WEFT_RETURN_IF_ERROR(file_->gradients().Start(b));
    const int64_t sums = host.up().Enqueue(
        [this, b, bucket, memory = memory_[b].As<float>()] {
          if (file_ != nullptr) WEFT_RETURN_IF_ERROR(file_->gradients().AwaitUncounted(b));
          return ForEachRun(bucket, memory, Whole(bucket),
                            [this](float* above, const float* below, int64_t elements) {
                              context_->host->up().Copy(
                                  above, below, static_cast<size_t>(elements) * sizeof(float));
                              return OkStatus();
                            });
        },
        stream);
    WEFT_RETURN_IF_ERROR(host.up().Await(stream, sums));
    if (file_ != nullptr) file_->gradients().Drop(b);
  }
  parameters_->PlaceGradients({all.begin, all.end}, memory_[b].As<float>());
  return OkStatus();
}

Result<TensorView> OffloadedGradients::PlaceGradient(int64_t index) {
  const int64_t bucket = layout_.bucket_of[static_cast<size_t>(index)];
  if (!memory_[static_cast<size_t>(bucket)]) WEFT_RETURN_IF_ERROR(Open(bucket));
  return parameters_->gradient(index);
}

Status OffloadedGradients::OnGradientReady(int64_t index) {
  const int64_t bucket = layout_.bucket_of[static_cast<size_t>(index)];
  const auto b = static_cast<size_t>(bucket);
  WEFT_CHECK(missing_[b] > 0, "a gradient was reported twice");
  if (--missing_[b] > 0) return OkStatus();
  const bool reduces = ranks_ != nullptr && (last_micro_batch_ || ReducesEveryPass());
  // Earlier micro-batches have left all there is of it.
  if (!memory_[b] && reduces) WEFT_RETURN_IF_ERROR(Open(bucket));
  if (!memory_[b]) return OkStatus();
  Tensor memory = std::exchange(memory_[b], {});
  if (kept_[b] && !reduces) return OkStatus();
  if (!kept_[b]) {
    const GradientBucket& all = layout_.buckets[b];
    parameters_->PlaceGradients({all.begin, all.end}, nullptr);
  }
  if (!reduces) return Send(bucket, std::move(memory), true, false, Work());
  WEFT_ASSIGN_OR_RETURN(const Work work, ranks_->ReduceAt(bucket, memory));
  if (kept_[b]) {
    kept_reductions_.push_back(work);
    return OkStatus();
  }
  // Ranks that shard nothing keep all.
  return Send(bucket, std::move(memory), false, ReducesEveryPass() && sums_below_[b], work);
}

Status OffloadedGradients::Send(int64_t bucket, Tensor memory, bool whole, bool adds,
                                const Work& work) {
  if (file_ != nullptr) {
    // Also of a bucket that was open throughout.
    WEFT_RETURN_IF_ERROR(file_->gradients().FinishWrites(1));
    WEFT_RETURN_IF_ERROR(file_->gradients().Start(static_cast<size_t>(bucket), adds));
  }
  const Slice slice = whole ? Whole(bucket) : Kept(bucket);
  WEFT_RETURN_IF_ERROR(SendDown(bucket, std::move(memory), slice, adds, work));
  if (file_ != nullptr) WriteDown(bucket, slice);
  return OkStatus();
}

Result<int64_t> OffloadedGradients::BringSums(int64_t bucket, const Slice& slice, Tensor& sums) {
  WEFT_ASSIGN_OR_RETURN(
      sums, Tensor::New(*context_, Component::kGradients, DType::kF32, {slice.range.size()}));
  const int64_t below = last_download_[static_cast<size_t>(bucket)];
  const GradientBucket& all = layout_.buckets[static_cast<size_t>(bucket)];
  float* const memory = sums.As<float>() - (slice.range.begin - all.begin);
  TransferQueue& up = context_->host->up();
  return up.Enqueue(
      [this, &up, bucket, slice, below, memory]() -> Status {
        WEFT_RETURN_IF_ERROR(up.Follow(context_->host->down(), below));
        return ForEachRun(bucket, memory, slice,
                          [&up](float* above, const float* sum, int64_t elements) {
                            up.Copy(above, sum, static_cast<size_t>(elements) * sizeof(float));
                            return OkStatus();
                          });
      },
      context_->stream);
}

// With what padding holds, which goes nowhere.
Status OffloadedGradients::AddSums(int64_t bucket, float* memory, const Slice& slice, int64_t job,
                                   const TensorView& sums) {
  HostMemoryPool& host = *context_->host;
  WEFT_RETURN_IF_ERROR(host.down().Follow(host.up(), job));
  const GradientBucket& all = layout_.buckets[static_cast<size_t>(bucket)];
  const TensorView arriving(memory + (slice.range.begin - all.begin), DType::kF32,
                            {slice.range.size()}, sums.device);
  return kernels::Add(host.down().stream(), {sums, arriving, arriving});
}

Status OffloadedGradients::SendDown(int64_t bucket, Tensor memory, const Slice& slice, bool adds,
                                    const Work& work) {
  const auto b = static_cast<size_t>(bucket);
  TransferQueue& down = context_->host->down();
  const bool adds_above = adds && context_->stream.device.type == DeviceType::kCuda;
  Tensor sums;
  int64_t sums_job = 0;
  if (adds_above) {
    WEFT_ASSIGN_OR_RETURN(sums_job, BringSums(bucket, slice, sums));
  }
  last_download_[b] = down.Enqueue(
      [this, &down, bucket, above_all = memory.As<float>(), slice, adds, work, sums_job,
       sums = sums ? sums.view() : TensorView()]() -> Status {
        WEFT_RETURN_IF_ERROR(work.WaitUncounted(down.stream()));
        if (sums_job > 0) {
          WEFT_RETURN_IF_ERROR(AddSums(bucket, above_all, slice, sums_job, sums));
        }
        if (file_ != nullptr && adds) {
          WEFT_RETURN_IF_ERROR(file_->gradients().AwaitUncounted(static_cast<size_t>(bucket)));
        }
        return ForEachRun(bucket, above_all, slice,
                          [&](float* above, float* below, int64_t elements) {
                            const auto bytes = static_cast<size_t>(elements) * sizeof(float);
                            if (!adds || sums_job > 0) {
                              down.Copy(below, above, bytes);
                              return OkStatus();
                            }
                            const TensorView arriving(above, DType::kF32, {elements}, {});
                            const TensorView in_place(below, DType::kF32, {elements}, {});
                            return down.Move(bytes, [&] {
                              return kernels::Add(Stream(), {in_place, arriving, in_place});
                            });
                          });
      },
      context_->stream);
  in_flight_.push_back({last_download_[b], std::move(memory), std::move(sums)});
  sums_below_[b] = true;
  return OkStatus();
}

// Padding counts as zeros below.
void OffloadedGradients::WriteDown(int64_t bucket, const Slice& slice) {
  const auto b = static_cast<size_t>(bucket);
  TransferQueue& down = context_->host->down();
  file_->WriteGradients(b, [this, &down, bucket, slice, job = last_download_[b]]() -> Status {
    WEFT_RETURN_IF_ERROR(down.WaitUncounted(job));
    float* at = slice.below;
    float* const end = at + slice.range.size();
    WEFT_RETURN_IF_ERROR(
        ForEachRun(bucket, slice.below, slice, [&](const float*, float* run, int64_t elements) {
          std::fill(at, run, 0.0f);
          at = run + elements;
          return OkStatus();
        }));
    std::fill(at, end, 0.0f);
    return OkStatus();
  });
}

Status OffloadedGradients::Finish() {
  for (const int64_t missing : missing_) WEFT_CHECK(missing == 0, "a gradient was not reported");
  for (const Work& work : std::exchange(kept_reductions_, {})) {
    WEFT_RETURN_IF_ERROR(work.Wait(context_->stream));
  }
  sums_below_.assign(sums_below_.size(), false);
  parameters_->PlaceGradientsWhereHeld();
  Status arrived = context_->host->down().WaitForAll();
  if (arrived.ok() && file_ != nullptr) arrived = file_->gradients().FinishWrites();
  in_flight_.clear();
  WEFT_RETURN_IF_ERROR(arrived);
  return ranks_ == nullptr ? OkStatus() : ranks_->SumOverGroups();
}

}  // namespace weft::engine
