#include <cstring>
#include <string>
#include <vector>

#include "common/check.h"
#include "kernels/quantize_4bit/quantize_4bit.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

std::vector<double> Dequantized(const FourBitFormat& format, const std::vector<int32_t>& words,
                                int64_t count) {
  const FourBitLayout layout(format, count);
  const auto* const bytes = reinterpret_cast<const uint8_t*>(words.data());
  const auto number = [&](int64_t at, int64_t index) {
    float value = 0;
    std::memcpy(&value, bytes + at + 4 * index, sizeof value);
    return double{value};
  };
  std::vector<double> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t block = i / format.block_size;
    const double scale = format.double_quantization
                             ? FourBitScales()[bytes[layout.scales + block]] *
                                       number(layout.scales_of_scales, block / 256) +
                                   number(layout.mean, 0)
                             : number(layout.scales, block);
    const int code = i % 2 == 0 ? bytes[i / 2] >> 4 : bytes[i / 2] & 15;
    values[static_cast<size_t>(i)] = FourBitValues(format.type)[static_cast<size_t>(code)] * scale;
  }
  return values;
}

OpCase DequantizeCase(const FourBitFormat& format, int64_t count, DType dtype, CaseUse use) {
  const std::string name =
      "dequantize_4bit/" + std::to_string(count) + "by" + std::to_string(format.block_size) +
      (format.type == FourBitFormat::Type::kNf4 ? "/nf4" : "/fp4") +
      (format.double_quantization ? "+double/" : "/") + std::string(DTypeName(dtype));
  return {name, use, [=](OpRun& run) {
            const FourBitLayout layout(format, count);
            TestTensor& words = run.tensors.emplace_back(DType::kI32, Shape{layout.words});
            std::vector<int32_t> quantized(static_cast<size_t>(layout.words));
            if (use == CaseUse::kDeviceSpeed) {
              words.RandomIntegers(run.rng, 0, int64_t{1} << 31);
            } else {
              std::vector<float> x(static_cast<size_t>(count));
              for (float& value : x) value = static_cast<float>(run.rng.Normal());
              const Status status = Quantize4Bit(format, x, quantized);
              WEFT_CHECK(status.ok(), status.ToString());
              words.Assign({quantized.begin(), quantized.end()});
            }
            TestTensor& y = run.Output("y", dtype, {count}, 0, 1,
                                       [=] { return Dequantized(format, quantized, count); });
            const Dequantize4BitArgs args = {words.view(), format, y.view()};
            run.run = [args](const Stream& stream) { return Dequantize4Bit(stream, args); };
            run.bytes = static_cast<double>(words.view().Bytes() + y.view().Bytes());
          }};
}

}  // namespace

std::vector<OpCase> Quantize4BitCases() {
  using enum FourBitFormat::Type;
  std::vector<OpCase> cases;
  for (DType dtype : kFloatTypes) {
    for (int64_t count : {0, 1, 5, 31, 33, 64, 129, 20000}) {
      cases.push_back(DequantizeCase({kNf4, 64, true}, count, dtype, CaseUse::kTest));
      cases.push_back(DequantizeCase({kFp4, 32, false}, count, dtype, CaseUse::kTest));
    }
    cases.push_back(DequantizeCase({kNf4, 64, true}, int64_t{3072} * 768, dtype, CaseUse::kSpeed));
  }
  cases.push_back(
      DequantizeCase({kNf4, 64, true}, int64_t{14336} * 4096, DType::kBF16, CaseUse::kDeviceSpeed));
  return cases;
}

}  // namespace weft::kernels::testing
