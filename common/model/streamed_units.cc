#include "common/model/streamed_units.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "common/model/model_sizes.h"
#include "common/model/parameter_list.h"
#include "common/model/technique_cost.h"
#include "common/number.h"

namespace weft {
namespace {

// Vectors and matrices begin on 64 bytes.
int64_t Aligned(int64_t elements) {
  return (elements + 15) / 16 * 16;
}

}  // namespace

std::vector<StreamedUnit> StreamedUnits(const ModelSpec& model, int64_t tensor, int64_t rows,
                                        int64_t expert_ranks) {
  const int64_t blocks = DistinctBlocks(model);
  if (blocks > 1 && !DiffersByBlock(model)) {
    // Alike: planners ask often.
    ModelSpec one = model;
    one.layers = one.distinct_blocks = 1;
    std::vector<StreamedUnit> units = StreamedUnits(one, tensor, rows, expert_ranks);
    const StreamedUnit block = units[1];
    units.insert(units.begin() + 1, static_cast<size_t>(blocks - 1), block);
    return units;
  }
  std::vector<StreamedUnit> units(static_cast<size_t>(DistinctBlocks(model)) + 2);
  for (const ParameterInfo& parameter : ParametersOfRank(model, tensor, rows)) {
    if (!IsOnExpertRank(model, parameter, expert_ranks)) continue;
    StreamedUnit& unit = units[static_cast<size_t>(parameter.unit)];
    const bool is_quantized = parameter.quantized_words > 0;
    const int64_t elements = is_quantized ? parameter.quantized_words : parameter.StoredElements();
    if (!parameter.frozen) {
      unit.trained += parameter.Elements();
      unit.stored_trained += elements;
    }
    if (!parameter.matrix() || is_quantized) {
      unit.vectors += Aligned(elements);
      continue;
    }
    const bool looked_up = parameter.looked_up();
    if (looked_up) unit.looked_up += Aligned(elements);
    if (looked_up && !IsClassifier(model, parameter)) continue;
    StreamedUnit& product = looked_up ? units.back() : unit;
    product.matrices += elements;
    if (IsMlp(parameter.role) && parameter.expert < 0) product.mlp += elements;
    if (parameter.block_matrix() && !parameter.frozen) product.trained_of_block += elements;
    if (looked_up) product.of_first += elements;
    if (parameter.read_directly) {
      product.direct += elements;
      continue;
    }
    if (parameter.only_multiplied) product.frozen += elements;
    if (parameter.only_multiplied && parameter.in_tiles()) product.frozen_in_tiles += elements;
    if (parameter.in_tiles()) {
      product.in_tiles += elements;
      if (looked_up) product.of_first_in_tiles += elements;
    }
    product.padding.Add(parameter.packed_padding());
  }
  return units;
}

StreamedUnit SumOfUnits(const std::vector<StreamedUnit>& units,
                        const std::vector<int64_t>& chosen) {
  StreamedUnit sum;
  for (const int64_t index : chosen) {
    if (index < 0 || index >= std::ssize(units)) continue;
    const StreamedUnit& unit = units[static_cast<size_t>(index)];
    sum.vectors += unit.vectors;
    sum.looked_up += unit.looked_up;
    sum.matrices += unit.matrices - unit.of_first;
    sum.mlp += unit.mlp;
    sum.trained_of_block += unit.trained_of_block;
    sum.direct += unit.direct;
    sum.frozen += unit.frozen;
    sum.frozen_in_tiles += unit.frozen_in_tiles;
    sum.in_tiles += unit.in_tiles - unit.of_first_in_tiles;
    sum.trained += unit.trained;
    sum.stored_trained += unit.stored_trained;
    if (index > 0) continue;
    sum.matrices += units.back().of_first;
    sum.in_tiles += units.back().of_first_in_tiles;
    sum.of_first += units.back().of_first;
  }
  return sum;
}

FiledValues FiledUnits(const std::vector<int64_t>& units, bool tied, bool shares) {
  constexpr int64_t kBlock = 4096;  // of a file; memory begins at one
  std::vector<int64_t> held;
  FiledValues bytes;
  for (const int64_t own : units) {
    const int64_t in_file = RoundUp(own, kBlock);
    bytes.file += in_file;
    if (in_file > 0) held.push_back(in_file + kBlock);
  }
  const int64_t ahead = FiledUnitsAhead(shares), count = std::ssize(held);
  const auto sum = [&](int64_t begin, int64_t end) {
    return std::accumulate(held.begin() + std::max<int64_t>(begin, 0), held.begin() + end,
                           int64_t{0});
  };
  for (int64_t end = 1; end <= count; ++end) {
    bytes.host = std::max(bytes.host, sum(end - 1 - ahead, end));
  }
  // Such a head comes behind the last block.
  if (tied && count > ahead) bytes.host = std::max(bytes.host, sum(count - ahead, count) + held[0]);
  return bytes;
}

std::vector<int64_t> FiledUnitBytes(const ModelShape& shape, int64_t matrix_bytes) {
  constexpr int64_t kF32 = 4;
  const std::vector<StreamedUnit> units =
      StreamedUnits(shape.spec, shape.tensor, shape.tensor_rows, shape.expert_ranks);
  std::vector<int64_t> bytes;
  for (const StreamedUnit& unit : units) {
    bytes.push_back(kF32 * unit.vectors + matrix_bytes * unit.held_matrices());
  }
  // The last stage of a pipeline has a table that classifies before its blocks.
  if (!shape.embeds) bytes.front() = matrix_bytes * units.back().of_first;
  if (!shape.has_head) bytes.back() = 0;
  return bytes;
}

FiledValues FiledValueBytes(const ModelShape& shape, int64_t matrix_bytes, bool shares) {
  const bool tied = HeadOf(shape.spec) != "classification" && !shape.spec.untied_classifier;
  return FiledUnits(FiledUnitBytes(shape, matrix_bytes), tied && shape.has_head, shares);
}

int64_t FirstDifferentiatedUnit(const ModelSpec& model) {
  if (!FreezesAny(model)) return 0;
  for (const ParameterInfo& parameter : ParametersOf(model)) {
    if (!parameter.frozen) return parameter.unit;
  }
  return DistinctBlocks(model) + 2;
}

}  // namespace weft
