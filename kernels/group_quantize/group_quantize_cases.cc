#include "kernels/group_quantize/group_quantize.h"

#include <algorithm>
#include <span>

#include "kernels/group_quantize/group_quantize_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

constexpr PhiloxKey kKey = {.seed = 0xfedcba9876543210u, .step = 77, .site = 0x80000001u};

std::string NameOf(const char* op, int64_t count, int64_t bits, DType dtype) {
  return std::string(op) + "/" + std::to_string(count) + "by" + std::to_string(bits) + "/" +
         std::string(DTypeName(dtype));
}

// Calls fn(group, its elements) for the groups of `values`.
template <class Fn>
void ForGroups(const std::vector<double>& values, Fn&& fn) {
  const std::span<const double> all(values);
  for (size_t begin = 0; begin < all.size(); begin += kQuantizeGroup) {
    const size_t count = std::min<size_t>(kQuantizeGroup, all.size() - begin);
    fn(begin / kQuantizeGroup, all.subspan(begin, count));
  }
}

std::vector<double> Codes(const std::vector<double>& x, int64_t bits, uint64_t first) {
  const auto row = static_cast<size_t>(16 * bits);
  std::vector<double> bytes(row * QuantizeGroups(static_cast<int64_t>(x.size())));
  ForGroups(x, [&](size_t group, std::span<const double> elements) {
    const auto truth = ref::GroupQuantize<float>(elements, static_cast<int>(bits), kKey,
                                                 first + group * kQuantizeGroup);
    for (size_t j = 0; j < elements.size(); ++j) {
      bytes[group * row + j % row] += truth.codes[j] << (j / row * static_cast<size_t>(bits));
    }
  });
  return bytes;
}

std::vector<double> Scales(const std::vector<double>& x, int64_t bits) {
  std::vector<double> scales;
  ForGroups(x, [&](size_t, std::span<const double> elements) {
    const auto truth = ref::GroupQuantize<double>(elements, static_cast<int>(bits), kKey, 0);
    scales.push_back(truth.least);
    scales.push_back(truth.step);
  });
  return scales;
}

OpCase QuantizeCase(int64_t count, int64_t bits, DType dtype, uint64_t first, CaseUse use) {
  return {NameOf("group_quantize", count, bits, dtype), use, [=](OpRun& run) {
            TestTensor& x = run.Input(dtype, {count}, 0, 3.0);
            const int64_t groups = QuantizeGroups(count);
            TestTensor& codes = run.Output("codes", DType::kU8, {groups, 16 * bits}, 0, 1,
                                           [=, &x] { return Codes(x.Values(), bits, first); });
            TestTensor& scales = run.Output("scales", DType::kF32, {groups, 2}, 0, 1,
                                            [=, &x] { return Scales(x.Values(), bits); });
            const GroupQuantizeArgs args = {.x = x.view(),
                                            .codes = codes.view(),
                                            .scales = scales.view(),
                                            .bits = bits,
                                            .key = kKey,
                                            .first_element = first};
            run.run = [args](const Stream& stream) { return GroupQuantize(stream, args); };
            run.bytes = static_cast<double>(x.view().Bytes() + codes.view().Bytes() +
                                            scales.view().Bytes());
          }};
}

OpCase DequantizeCase(int64_t count, int64_t bits, DType dtype, CaseUse use) {
  return {NameOf("group_dequantize", count, bits, dtype), use, [=](OpRun& run) {
            const int64_t groups = QuantizeGroups(count);
            TestTensor& codes = run.tensors.emplace_back(DType::kU8, Shape{groups, 16 * bits});
            codes.RandomIntegers(run.rng, 0, 256);
            TestTensor& scales = run.Input(DType::kF32, {groups, 2});
            TestTensor& y = run.Output("y", dtype, {count}, 0, 1, [=, &codes, &scales] {
              const std::vector<double> bytes = codes.Values(), scale = scales.Values();
              std::vector<double> values(static_cast<size_t>(count));
              for (size_t i = 0; i < values.size(); ++i) {
                const size_t group = i / kQuantizeGroup, j = i % kQuantizeGroup;
                const auto row = static_cast<size_t>(16 * bits);
                const auto byte = static_cast<unsigned>(bytes[group * row + j % row]);
                const unsigned code = byte >> (j / row * static_cast<size_t>(bits));
                values[i] = scale[2 * group] + (code & ((1u << bits) - 1)) * scale[2 * group + 1];
              }
              return values;
            });
            const GroupDequantizeArgs args = {codes.view(), scales.view(), bits, y.view()};
            run.run = [args](const Stream& stream) { return GroupDequantize(stream, args); };
            run.bytes = static_cast<double>(y.view().Bytes() + codes.view().Bytes() +
                                            scales.view().Bytes());
          }};
}

}  // namespace

std::vector<OpCase> GroupQuantizeCases() {
  std::vector<OpCase> cases;
  for (DType dtype : kFloatTypes) {
    const auto add = [&](int64_t count, int64_t bits, uint64_t first, CaseUse use) {
      cases.push_back(QuantizeCase(count, bits, dtype, first, use));
      cases.push_back(DequantizeCase(count, bits, dtype, use));
    };
    for (int64_t bits : {8, 4, 2}) {
      for (int64_t count : {0, 1, 5, 33, 127, 128, 129, 5000}) {
        // The block number carries into its upper half within the longest.
        const uint64_t first = count == 5000 ? (uint64_t{1} << 34) - 400 : 0;
        add(count, bits, first, CaseUse::kTest);
      }
    }
    add(int64_t{2048} * 768, 4, 0, CaseUse::kSpeed);
    if (dtype == DType::kBF16) add(int64_t{65536} * 4096, 4, 0, CaseUse::kDeviceSpeed);
  }
  return cases;
}

}  // namespace weft::kernels::testing
