#include "kernels/swap_blocks/swap_blocks.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

struct Sizes {
  int64_t rows, outer, inner, width;

  int64_t columns() const { return outer * inner * width; }
  std::string ToString() const {
    return std::to_string(rows) + "x" + std::to_string(outer) + "x" + std::to_string(inner) + "x" +
           std::to_string(width);
  }
};

OpCase SwapCase(const Sizes& size, DType dtype) {
  return {"swap_blocks/" + size.ToString() + "/" + std::string(DTypeName(dtype)), CaseUse::kTest,
          [=](OpRun& run) {
            TestTensor& x = run.Input(dtype, {size.rows, size.columns()});
            TestTensor& y = run.Output("y", dtype, {size.rows, size.columns()}, 0, 1, [=, &x] {
              const std::vector<double> values = x.InitialValues();
              std::vector<double> swapped;
              for (int64_t r = 0; r < size.rows; ++r) {
                for (int64_t j = 0; j < size.inner; ++j) {
                  for (int64_t i = 0; i < size.outer; ++i) {
                    for (int64_t c = 0; c < size.width; ++c) {
                      const int64_t block = (r * size.outer + i) * size.inner + j;
                      swapped.push_back(values[block * size.width + c]);
                    }
                  }
                }
              }
              return swapped;
            });
            run.run = [=, &x, &y](const Stream& stream) {
              return SwapBlocks(stream, {x.view(), y.view(), size.outer, size.inner});
            };
          }};
}

OpCase DeviceCase() {
  const Sizes size{65536, 4, 4, 128};
  return {"swap_blocks/" + size.ToString() + "/" + std::string(DTypeName(DType::kBF16)),
          CaseUse::kDeviceSpeed, [=](OpRun& run) {
            TestTensor& x = run.Input(DType::kBF16, {size.rows, size.columns()});
            TestTensor& y = run.Input(DType::kBF16, {size.rows, size.columns()});
            run.run = [=, &x, &y](const Stream& stream) {
              return SwapBlocks(stream, {x.view(), y.view(), size.outer, size.inner});
            };
            run.bytes = static_cast<double>(2 * x.view().Bytes());
          }};
}

}  // namespace

std::vector<OpCase> SwapBlocksCases() {
  std::vector<OpCase> cases = {DeviceCase()};
  for (DType dtype : kFloatTypes) {
    // None, one block, blocks of one number, of 16 bytes and of others, and several threads.
    for (const Sizes& size : {Sizes{0, 2, 3, 4}, Sizes{3, 1, 1, 5}, Sizes{5, 3, 2, 1},
                              Sizes{7, 2, 4, 8}, Sizes{7, 4, 2, 13}, Sizes{600, 4, 4, 24}}) {
      cases.push_back(SwapCase(size, dtype));
    }
  }
  return cases;
}

}  // namespace weft::kernels::testing
