#pragma once

#include "common/dtype.h"
#include "common/model/memory_model.h"
#include "kernels/cpu/isa.h"

namespace weft::engine {

/// How this processor multiplies matrices of a type.
inline ProductKind ProductsOf(DType products) {
  using kernels::cpu::Isa;
  const Isa isa = kernels::cpu::ActiveIsa();
  if (isa < Isa::kAvx512) {
    return products == DType::kF32 ? ProductKind::kUnpacked : ProductKind::kWidenedUnpacked;
  }
  if (isa >= Isa::kAmx) {
    return products == DType::kBF16 ? ProductKind::kTiles : ProductKind::kSplit;
  }
  const bool native =
      products == DType::kF32 || (products == DType::kBF16 && isa >= Isa::kAvx512Bf16);
  return native ? ProductKind::kNative : ProductKind::kWidened;
}

}  // namespace weft::engine
