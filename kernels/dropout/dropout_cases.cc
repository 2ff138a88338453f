#include "kernels/dropout/dropout.h"
#include "kernels/dropout/dropout_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

/// Some columns of a wider matrix; none: all of it.
struct Part {
  int64_t columns = 0;
  int64_t row_stride = 0;
};

OpCase Case(int64_t count, DType dtype, float probability, uint64_t first, bool in_place,
            CaseUse use, Part part = {}) {
  std::string name = (in_place ? "dropout_in_place/" : "dropout/") + std::to_string(count) +
                     "from" + std::to_string(first) + "p" +
                     std::to_string(static_cast<int>(probability * 100)) +
                     (part.columns > 0 ? "columns" + std::to_string(part.columns) : "") + "/" +
                     std::string(DTypeName(dtype));
  return {name, use, [=](OpRun& run) {
            // Both halves of the seed and of the block number matter.
            PhiloxKey key = {.seed = 0xfedcba9876543210u, .step = 123456789, .site = 0x80000001u};
            TestTensor& x = run.Input(dtype, {count});
            auto reference = [=, &x] {
              return ref::Dropout(x.InitialValues(), probability, key, first,
                                  static_cast<size_t>(part.columns),
                                  static_cast<size_t>(part.row_stride));
            };
            TestTensor& y = in_place ? x : run.Output("y", dtype, {count}, 0, 1, reference);
            if (in_place) run.Check("x", x, 1, reference);
            run.run = [=, &x, &y](const Stream& stream) {
              return Dropout(stream, {.x = x.view(),
                                      .y = y.view(),
                                      .probability = probability,
                                      .key = key,
                                      .first_element = first,
                                      .columns = part.columns,
                                      .row_stride = part.row_stride});
            };
            run.bytes = static_cast<double>(2 * x.view().Bytes());
          }};
}

}  // namespace

std::vector<OpCase> DropoutCases() {
  std::vector<OpCase> cases;
  for (DType dtype : kFloatTypes) {
    for (int64_t count : {0, 1, 5, 63, 64, 65, 1000, 70001}) {
      cases.push_back(Case(count, dtype, 0.1f, 0, false, CaseUse::kTest));
    }
    // The block number carries into its upper half within the tensor.
    cases.push_back(Case(2000, dtype, 0.5f, (uint64_t{1} << 34) - 400, false, CaseUse::kTest));
    cases.push_back(Case(2000, dtype, 0.9f, 4, true, CaseUse::kTest));
    cases.push_back(Case(100, dtype, 0.0f, 4, true, CaseUse::kTest));
    for (const int64_t columns : {4, 40, 64}) {
      cases.push_back(Case(1000 * columns, dtype, 0.5f, 12, false, CaseUse::kTest, {columns, 132}));
    }
    for (int64_t width : {384, 768}) {
      cases.push_back(Case(2048 * width, dtype, 0.1f, 0, true, CaseUse::kSpeed));
    }
    if (dtype == DType::kF16) continue;
    cases.push_back(Case(int64_t{65536} * 2048, dtype, 0.1f, 0, true, CaseUse::kDeviceSpeed));
  }
  return cases;
}

}  // namespace weft::kernels::testing
