#include "worker/engine/nn/word_tensors.h"

#include <algorithm>
#include <string>

namespace weft::engine {
namespace {

/// A tensor in the words of a parameter, or of this rank's shard of it.
struct Piece {
  const char* suffix;
  int64_t offset = 0;  ///< Byte of the words.
  DType dtype = DType::kU8;
  Shape shape = {};
  int64_t columns = 0;  ///< NamedTensor::columns
};

std::vector<Piece> PiecesOf(const Parameter& parameter, const FourBitFormat& format) {
  const int64_t elements = parameter.shape.Elements(), block = format.block_size;
  const FourBitLayout layout(format, elements, parameter.four_bit_part);
  Shape codes{(elements + 1) / 2}, scales{layout.blocks};
  if (parameter.logical_shape()[1] % block == 0) {
    codes = {parameter.shape[0], parameter.shape[1] / 2};
    scales = {parameter.shape[0], parameter.shape[1] / block};
  }
  const DType scale = format.double_quantization ? DType::kU8 : DType::kF32;
  std::vector<Piece> pieces = {{"", 0, DType::kU8, codes, 2},
                               {".scales", layout.scales, scale, scales, block}};
  if (!format.double_quantization) return pieces;
  const int64_t count = (layout.mean - layout.scales_of_scales) / 4;
  pieces.push_back({".scales_of_scales", layout.scales_of_scales, DType::kF32, {count}});
  pieces.push_back({".mean_scale", layout.mean, DType::kF32, {1}});
  return pieces;
}

}  // namespace

std::vector<NamedTensor> WordTensors(const ParameterSet& parameters, int64_t index) {
  const Parameter& parameter = parameters[index];
  const ParameterSet::HeldValue held = parameters.held_value(index);
  const int64_t held_begin = 4 * held.first;
  const int64_t held_end = held_begin + static_cast<int64_t>(held.view.Bytes());
  std::vector<NamedTensor> tensors;
  for (const Piece& piece : PiecesOf(parameter, parameters.four_bit_format())) {
    const auto size = static_cast<int64_t>(DTypeSize(piece.dtype));
    const int64_t end = piece.offset + piece.shape.Elements() * size;
    const int64_t from = std::clamp(held_begin, piece.offset, end);
    const int64_t to = std::clamp(held_end, piece.offset, end);
    NamedTensor& tensor = tensors.emplace_back();
    tensor.name = parameter.name + piece.suffix;
    tensor.parameter = index;
    tensor.columns = piece.columns;
    auto* data = static_cast<char*>(held.view.data);
    if (to > from) data += from - held_begin;
    tensor.view = {data, piece.dtype, piece.shape, held.view.device};
    if (!parameters.values_sharded()) continue;
    tensor.view = {data, piece.dtype, {(to - from) / size}, held.view.device};
    tensor.part = {.whole = piece.shape, .first = (from - piece.offset) / size};
  }
  return tensors;
}

}  // namespace weft::engine
