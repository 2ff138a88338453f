#include "worker/engine/nn/activation_compressor.h"

#include <algorithm>
#include <utility>

#include "kernels/group_quantize/group_quantize.h"

namespace weft::engine {
namespace {

// Each expert of a mixture keeps one tensor.
constexpr int64_t kMostTensorsOfALayer = 1024;

/// Codes and scales of a tensor, in one piece of memory; the codes first, so that they are aligned.
struct Parts {
  Tensor codes;
  Tensor scales;

  Parts(const Tensor& memory, int64_t elements, int64_t bits) {
    const int64_t groups = kernels::QuantizeGroups(elements);
    codes = memory.Part(0, DType::kU8, {groups, 16 * bits});
    scales = memory.Part(codes.Bytes(), DType::kF32, {groups, 2});
  }
};

}  // namespace

bool ActivationCompressor::IsTokenShard(int64_t rows) const {
  const TensorParallel* ranks = options_.tensor;
  return ranks != nullptr && ranks->sequence() && rows * ranks->degree() == batch_.count;
}

std::vector<RowSpan> ActivationCompressor::SpansOf(int64_t rows) const {
  const int64_t first = IsTokenShard(rows) ? options_.tensor->FirstRow(batch_.count) : 0;
  if (options_.context == nullptr) return {{0, rows, batch_.first_token + first}};
  return options_.context->SpansOf(first, rows, batch_.length, batch_.first_token);
}

ColumnPart ActivationCompressor::PartOf(const ColumnPart& part, int64_t columns) const {
  const TensorParallel* ranks = options_.tensor;
  if (part.whole > 0 || part.rows_of_token > 0 || ranks == nullptr || ranks->rows() == 1) {
    return part;
  }
  return {.whole = columns * ranks->rows(), .first = columns * ranks->row()};
}

Result<SavedTensor> ActivationCompressor::Keep(Context& context, const Tensor& tensor,
                                               const ColumnPart& part) {
  ProfileScope scope(context.profiler, "compress activation");
  const int64_t bits = options_.bits;
  const int64_t elements = tensor.shape().Elements();
  if (elements == 0) return KeepExactly(tensor);
  const int64_t bytes = kernels::QuantizeGroups(elements) * (8 + 16 * bits);
  WEFT_ASSIGN_OR_RETURN(Tensor memory,
                        Tensor::New(context, Component::kActivations, DType::kU8, {bytes}));
  const Parts parts(memory, elements, bits);
  const int64_t rows = tensor.shape().Rows(), columns = tensor.shape()[-1];
  const bool own_rows = part.rows_of_token > 0;
  const ColumnPart here = PartOf(part, columns);
  const bool shared = here.whole * here.pieces > columns;
  const int64_t run = shared ? columns / here.pieces : 0;
  const int64_t row_words = shared ? here.whole * here.pieces : columns;
  const int64_t own_token = batch_.first_token * std::max<int64_t>(here.rows_of_token, 1);
  std::vector<RowSpan> spans =
      own_rows ? std::vector<RowSpan>{{0, rows, own_token}} : SpansOf(rows);
  bool whole_groups =
      run % kernels::kQuantizeGroup == 0 && !(own_rows && options_.context != nullptr);
  for (const RowSpan& span : spans) {
    whole_groups = whole_groups && span.row * columns % kernels::kQuantizeGroup == 0;
  }
  // The golden ratio spreads layers and tensors over the sites of other names.
  auto place = static_cast<uint32_t>(options_.layer * kMostTensorsOfALayer + kept_++);
  if (!whole_groups) {
    // Groups that no other mesh has, with random numbers of their own.
    spans = {{0, rows, own_token}};
    const TensorParallel* ranks = options_.tensor;
    const int64_t sharer = shared                            ? here.first / run
                           : !own_rows && IsTokenShard(rows) ? ranks->rank()
                                                             : 0;
    const int64_t tensor_ranks = ranks != nullptr ? ranks->degree() : 1;
    const int64_t chunks = options_.context != nullptr ? options_.context->rank() : 0;
    place += static_cast<uint32_t>(1 + chunks * tensor_ranks + sharer) << 20;
  }
  const PhiloxKey key = {context.seed, static_cast<uint32_t>(context.step),
                         SiteHash("saved activation") + place * 0x9e3779b9u};
  for (const RowSpan& span : spans) {
    const int64_t first = span.row * columns, count = span.rows * columns;
    const int64_t group = first / kernels::kQuantizeGroup, groups = kernels::QuantizeGroups(count);
    WEFT_RETURN_IF_ERROR(kernels::GroupQuantize(
        context.stream,
        {.x = tensor.Part(first * static_cast<int64_t>(DTypeSize(tensor.dtype())), tensor.dtype(),
                          {span.rows, columns}),
         .codes = parts.codes.Part(group * 16 * bits, DType::kU8, {groups, 16 * bits}),
         .scales = parts.scales.Part(group * 8, DType::kF32, {groups, 2}),
         .bits = bits,
         .key = key,
         .step = context.Number(key.step, &StepNumbers::step).at,
         .first_element = static_cast<uint64_t>(span.token * row_words + here.first) / 4 * 4,
         .run = whole_groups ? run : 0,
         .run_stride = whole_groups ? here.whole : 0}));
  }
  return Tape::Save({},
                    [kept = KeepExactly(std::move(memory)), bits, dtype = tensor.dtype(),
                     shape = tensor.shape()](Context& ctx, const Tensor&) -> Result<Tensor> {
                      ProfileScope restoring(ctx.profiler, "restore activation");
                      WEFT_ASSIGN_OR_RETURN(const Tensor compressed, kept.Restore(ctx));
                      WEFT_ASSIGN_OR_RETURN(Tensor restored,
                                            Tensor::New(ctx, Component::kWorkspace, dtype, shape));
                      const Parts of(compressed, shape.Elements(), bits);
                      WEFT_RETURN_IF_ERROR(kernels::GroupDequantize(
                          ctx.stream, {of.codes, of.scales, bits, restored}));
                      return restored;
                    });
}

SavedTensor ActivationCompressor::KeepExactly(Tensor tensor) {
  return options_.below == nullptr ? Tape::AsItIs(std::move(tensor))
                                   : options_.below->KeepExactly(std::move(tensor));
}

}  // namespace weft::engine
