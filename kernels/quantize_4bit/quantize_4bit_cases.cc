#include <cstring>
#include <string>
#include <vector>

#include "common/check.h"
#include "kernels/quantize_4bit/quantize_4bit.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

std::vector<double> Dequantized(const FourBitFormat& format, const FourBitPart& part,
                                const std::vector<int32_t>& words, int64_t count) {
  const FourBitLayout layout(format, count, part);
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
                                       number(layout.scales_of_scales, part.BlockOf(block) / 256) +
                                   number(layout.mean, 0)
                             : number(layout.scales, block);
    const int code = i % 2 == 0 ? bytes[i / 2] >> 4 : bytes[i / 2] & 15;
    values[static_cast<size_t>(i)] = FourBitValues(format.type)[static_cast<size_t>(code)] * scale;
  }
  return values;
}

/// Normal numbers, quantised.
std::vector<int32_t> Quantized(const FourBitFormat& format, int64_t count, PhiloxStream& random) {
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) value = static_cast<float>(random.Normal());
  std::vector<int32_t> words(static_cast<size_t>(FourBitLayout(format, count).words));
  const Status status = Quantize4Bit(format, x, words);
  WEFT_CHECK(status.ok(), status.ToString());
  return words;
}

/// Dequantises the columns of a matrix that one of two ranks has.
OpCase DequantizePartCase(const FourBitFormat& format, int64_t rows, DType dtype) {
  constexpr int64_t kRun = 3;  // blocks of a row, of twice as many
  const int64_t count = rows * kRun * format.block_size;
  return {"dequantize_4bit/columns/" + std::to_string(rows) +
              (format.double_quantization ? "+double/" : "/") + std::string(DTypeName(dtype)),
          CaseUse::kTest, [=](OpRun& run) {
            const FourBitPart part = {
                .of = 2 * rows * kRun, .first = kRun, .run = kRun, .stride = 2 * kRun};
            const std::vector<int32_t> tensor = Quantized(format, 2 * count, run.rng);
            const FourBitLayout layout(format, count, part);
            std::vector<int32_t> own(static_cast<size_t>(layout.words));
            const Status status = Take4BitPart(format, part, count, tensor, own);
            WEFT_CHECK(status.ok(), status.ToString());
            TestTensor& words = run.tensors.emplace_back(DType::kI32, Shape{layout.words});
            words.Assign({own.begin(), own.end()});
            TestTensor& y = run.Output("y", dtype, {count}, 0, 1,
                                       [=] { return Dequantized(format, part, own, count); });
            const Dequantize4BitArgs args = {words.view(), format, y.view(), part};
            run.run = [args](const Stream& stream) { return Dequantize4Bit(stream, args); };
            run.bytes = static_cast<double>(words.view().Bytes() + y.view().Bytes());
          }};
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
              quantized = Quantized(format, count, run.rng);
              words.Assign({quantized.begin(), quantized.end()});
            }
            TestTensor& y = run.Output("y", dtype, {count}, 0, 1,
                                       [=] { return Dequantized(format, {}, quantized, count); });
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
    cases.push_back(DequantizePartCase({kNf4, 64, true}, 201, dtype));
    cases.push_back(DequantizePartCase({kFp4, 32, false}, 7, dtype));
    cases.push_back(DequantizeCase({kNf4, 64, true}, int64_t{3072} * 768, dtype, CaseUse::kSpeed));
  }
  cases.push_back(
      DequantizeCase({kNf4, 64, true}, int64_t{14336} * 4096, DType::kBF16, CaseUse::kDeviceSpeed));
  return cases;
}

}  // namespace weft::kernels::testing
