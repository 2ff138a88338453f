#include "common/model/parameter_info.h"

#include "common/model/model_sizes.h"
#include "common/number.h"

namespace weft {

int64_t ParameterInfo::StoredElements() const {
  return tiled ? Elements() / shape[0] * PaddedVocabulary(shape[0]) : Elements();
}

void PackedPadding::Add(const PackedPadding& other, int64_t times) {
  f32 += times * other.f32;
  f32_else += times * other.f32_else;
  bf16 += times * other.bf16;
  bf16_else += times * other.bf16_else;
}

PackedPadding ParameterInfo::packed_padding() const {
  if (stacked) return {};
  const auto padding = [&](int64_t block_rows, int64_t block_columns) {
    const int64_t rows = RoundUp(product_rows, block_rows);
    const int64_t columns = RoundUp(shape[1], block_columns);
    return products * (rows * columns - product_rows * shape[1]);
  };
  PackedPadding all = {.f32 = padding(64, 16), .bf16 = padding(64, 32)};
  if (in_tiles()) return all;
  all.f32_else = all.f32;
  all.bf16_else = all.bf16;
  return all;
}

}  // namespace weft
