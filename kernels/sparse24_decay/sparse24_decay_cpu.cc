#include <algorithm>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/parallel.h"
#include "kernels/sparse24_decay/sparse24_decay.h"
#include "kernels/sparse24_decay/sparse24_decay_check.h"

namespace weft::kernels::cpu {
namespace {

constexpr int64_t kGrain = 16384;

/// Calls leave_out(i) for each element i of `count`, from element `first` of W on, that the mask
/// does not keep.
template <class LeaveOut>
void ForEachLeftOut(const TensorView& mask, int64_t first, int64_t count,
                    const LeaveOut& leave_out) {
  const int64_t blocks = mask.shape[1], columns = 4 * blocks;
  const auto* bits = mask.As<uint16_t>();
  ParallelFor(count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end;) {
      const int64_t row = (first + i) / columns, column = (first + i) % columns;
      const int64_t here = std::min(end - i, columns - column);
      const uint16_t* of_row = bits + row / 4 * blocks;
      const int shift = static_cast<int>(row % 4) * 4;
      for (int64_t c = column; c < column + here; ++c, ++i) {
        if ((of_row[c / 4] >> (shift + c % 4) & 1) == 0) leave_out(i);
      }
    }
  });
}

bool IsMade(const UpdateGate& gate) {
  return gate.made == nullptr || *gate.made != 0;
}

}  // namespace

Status MaskedDecay(const Stream& stream, const MaskedDecayArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMaskedDecay(stream, args));
  const float factor = args.gate.factor == nullptr ? 1.0f : *args.gate.factor;
  if (!IsMade(args.gate) || factor == 0) return OkStatus();
  const float rate = args.decay / factor;
  auto* gradient = args.gradient.As<float>();
  const auto add = [&]<class T>() {
    const T* weight = args.weight.As<T>();
    ForEachLeftOut(args.mask, args.first, args.weight.shape[0],
                   [&](int64_t i) { gradient[i] += rate * ToFloat(weight[i]); });
  };
  if (args.weight.dtype == DType::kBF16) {
    add.template operator()<BFloat16>();
  } else {
    add.template operator()<float>();
  }
  return OkStatus();
}

Status MaskedWeightDecay(const Stream& stream, const MaskedWeightDecayArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMaskedDecay(stream, args));
  if (!IsMade(args.gate)) return OkStatus();
  const float rate = args.learning_rate.Get() * args.decay;
  auto* weight = args.weight.As<float>();
  ForEachLeftOut(args.mask, args.first, args.weight.shape[0],
                 [&](int64_t i) { weight[i] -= rate * weight[i]; });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
