#include "worker/engine/optim/gradient_norm.h"

#include <algorithm>
#include <utility>

#include "kernels/cpu/parallel.h"
#include "worker/engine/nn/parameter_file.h"
#include "worker/engine/nn/parameter_file_iterator.h"

namespace weft::engine {
namespace {

/// What the ParameterSet of a file counts, unit by unit, each range of one unit or a bucket of it.
Status MeasureFile(ParameterFile* file, std::span<const ParameterPart> parts, NormSums* sums) {
  if (file->norm().complete()) {
    *sums = {file->norm().SumOfSquares(), file->norm().NonFinite()};
    return OkStatus();
  }
  PiecewiseNorm norm(CountedGradients(file->parameters(), parts));
  norm.Start();
  ParameterFileIterator walk(file, {.gradients = true, .trained_alone = true});
  for (int64_t unit = 0; unit < file->parameters().units(); ++unit) {
    for (const size_t b : file->BucketsOf(unit)) {
      WEFT_RETURN_IF_ERROR(walk.MoveTo(unit));
      const ParameterSet::Range& range = file->buckets()[b].range;
      WEFT_RETURN_IF_ERROR(norm.Take(range, file->GradientAt(b, range.begin)));
    }
  }
  *sums = {norm.SumOfSquares(), norm.NonFinite()};
  return walk.Finish();
}

/// Whether the buffer of gradients is one tensor in norms, its padding being zero: without sources,
/// where this rank counts everything.
bool IsOneTensor(const ParameterSet& parameters) {
  return !parameters.has_derived() && !parameters.sharded() && !parameters.of_stage();
}

}  // namespace

Status Measure(Context& context, const std::vector<kernels::NormTensor>& tensors, NormSums* sums) {
  return kernels::NormStat(context.stream, {tensors, &sums->squares, &sums->non_finite});
}

kernels::NormTensor NormTensorOf(const TensorView& view) {
  const bool f32 = view.dtype == DType::kF32;
  return {f32 ? view.As<float>() : nullptr, view.shape.Elements(),
          f32 ? nullptr : view.As<BFloat16>()};
}

Status MeasureGradients(Context& context, const ParameterSet& parameters,
                        std::span<const ParameterPart> parts, NormSums* sums) {
  if (parameters.file() != nullptr) return MeasureFile(parameters.file(), parts, sums);
  std::vector<kernels::NormTensor> tensors;
  for (const ParameterPart& part : parts) {
    if (parameters.Counts(part)) tensors.push_back(NormTensorOf(part.gradient));
  }
  return Measure(context, tensors, sums);
}

Status MeasureGradients(Context& context, const ParameterSet& parameters, NormSums* sums) {
  if (parameters.file() != nullptr) return MeasureFile(parameters.file(), {}, sums);
  if (IsOneTensor(parameters)) {
    if (!parameters.keeps_some_on_device()) {
      return Measure(context, {NormTensorOf(parameters.gradients())}, sums);
    }
    NormStream stream;
    for (const ParameterSet::GradientRun& run : parameters.gradient_runs()) {
      WEFT_RETURN_IF_ERROR(stream.Add(NormTensorOf(parameters.HeldGradients(run.range))));
    }
    WEFT_RETURN_IF_ERROR(stream.EndTensor());
    *sums = stream.sums();
    return OkStatus();
  }
  std::vector<kernels::NormTensor> tensors;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].updated() || !parameters.Counts(i)) continue;
    tensors.push_back(NormTensorOf(parameters.gradient(i)));
  }
  return Measure(context, tensors, sums);
}

std::vector<ParameterSet::Range> CountedGradients(const ParameterSet& parameters,
                                                  std::span<const ParameterPart> parts) {
  if (parts.empty() && IsOneTensor(parameters)) return {{0, parameters.GradientCount()}};
  const bool shared = !parts.empty();
  const std::vector<ParameterPart> whole =
      shared ? std::vector<ParameterPart>() : TrainedParts(parameters);
  std::vector<ParameterSet::Range> counted;
  for (const ParameterPart& part : shared ? parts : std::span(whole)) {
    if (!parameters.Counts(part) || part.count() == 0) continue;
    const int64_t first = parameters.GradientOffset(part.index) + part.first;
    counted.push_back({first, first + part.count()});
  }
  return counted;
}

Status NormStream::AddBlocks(const kernels::NormTensor& tensor) {
  constexpr int64_t kBlock = kernels::kNormStatBlock;
  std::vector<NormSums> blocks(static_cast<size_t>((tensor.count + kBlock - 1) / kBlock));
  std::vector<Status> done(blocks.size());
  kernels::cpu::ParallelFor(std::ssize(blocks), 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      kernels::NormTensor block = tensor;
      if (block.data != nullptr) block.data += b * kBlock;
      if (block.bf16_data != nullptr) block.bf16_data += b * kBlock;
      block.count = std::min(kBlock, tensor.count - b * kBlock);
      NormSums& sums = blocks[static_cast<size_t>(b)];
      done[static_cast<size_t>(b)] =
          kernels::NormStat({}, {{&block, 1}, &sums.squares, &sums.non_finite});
    }
  });
  for (size_t b = 0; b < blocks.size(); ++b) {
    WEFT_RETURN_IF_ERROR(done[b]);
    sums_.squares += blocks[b].squares;
    sums_.non_finite += blocks[b].non_finite;
  }
  return OkStatus();
}

Status NormStream::Add(const kernels::NormTensor& piece) {
  constexpr int64_t kBlock = kernels::kNormStatBlock;
  if (piece.bf16_data != nullptr) {
    WEFT_CHECK(begun_.empty(), "a bf16 tensor comes as a whole");
    return AddBlocks(piece);
  }
  const float* data = piece.data;
  int64_t left = piece.count;
  if (!begun_.empty()) {
    const int64_t taken = std::min(left, kBlock - std::ssize(begun_));
    begun_.insert(begun_.end(), data, data + taken);
    data += taken;
    left -= taken;
    if (std::ssize(begun_) < kBlock) return OkStatus();
    WEFT_RETURN_IF_ERROR(EndTensor());
  }
  const int64_t whole = left / kBlock * kBlock;
  begun_.assign(data + whole, data + left);
  return AddBlocks({data, whole});
}

Status NormStream::EndTensor() {
  const std::vector<float> last = std::exchange(begun_, {});
  return AddBlocks({last.data(), std::ssize(last)});
}

}  // namespace weft::engine
