#include "kernels/gather_rows/gather_rows.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

constexpr int64_t kRows = 11;

// Neither sorted nor with a stride.
std::vector<double> Indices(int64_t count) {
  const std::vector<double> all = {3, 0, 10, 4, 7};
  return {all.begin(), all.begin() + count};
}

std::string NameOf(const char* op, int64_t count, int64_t width, DType dtype) {
  return std::string(op) + "/" + std::to_string(count) + "of" + std::to_string(kRows) + "x" +
         std::to_string(width) + "/" + std::string(DTypeName(dtype));
}

OpCase GatherCase(int64_t count, int64_t width, int64_t padding, DType dtype) {
  return {NameOf("gather_rows", count, width, dtype), CaseUse::kTest, [=](OpRun& run) {
            TestTensor& x = run.Input(dtype, {kRows, width}, padding);
            TestTensor& rows =
                run.tensors.emplace_back(DType::kI32, Shape{count}).Assign(Indices(count));
            TestTensor& y = run.Output("y", dtype, {count, width}, padding, 1, [=, &x] {
              const std::vector<double> values = x.InitialValues();
              std::vector<double> picked;
              for (double row : Indices(count)) {
                for (int64_t c = 0; c < width; ++c) {
                  picked.push_back(values[static_cast<size_t>(row) * width + c]);
                }
              }
              return picked;
            });
            run.run = [&x, &rows, &y](const Stream& stream) {
              return GatherRows(stream, {.x = x.view(), .rows = rows.view(), .y = y.view()});
            };
          }};
}

OpCase ScatterCase(int64_t count, int64_t width, int64_t padding, DType dtype) {
  return {NameOf("scatter_rows", count, width, dtype), CaseUse::kTest, [=](OpRun& run) {
            TestTensor& x = run.Input(dtype, {count, width}, padding);
            TestTensor& rows =
                run.tensors.emplace_back(DType::kI32, Shape{count}).Assign(Indices(count));
            TestTensor& y = run.Input(dtype, {kRows, width}, padding);
            run.Check("y", y, 1, [=, &x, &y] {
              std::vector<double> all = y.InitialValues();
              const std::vector<double> values = x.InitialValues();
              for (int64_t i = 0; i < count; ++i) {
                const auto row = static_cast<size_t>(Indices(count)[i]);
                for (int64_t c = 0; c < width; ++c) {
                  all[row * width + c] = values[i * width + c];
                }
              }
              return all;
            });
            run.run = [&x, &rows, &y](const Stream& stream) {
              return ScatterRows(stream, {.x = x.view(), .rows = rows.view(), .y = y.view()});
            };
          }};
}

// The columns of an [n, period] matrix that are picked, as rows of one number or of several.
OpCase ColumnsCase(bool gather, int64_t groups, int64_t period, int64_t width, DType dtype) {
  const std::vector<double> indices = {4, 0, 3};
  const auto count = static_cast<int64_t>(indices.size());
  const std::string name = std::string(gather ? "gather_rows" : "scatter_rows") + "/" +
                           std::to_string(count) + "of" + std::to_string(period) + "in" +
                           std::to_string(groups) + "x" + std::to_string(width) + "/" +
                           std::string(DTypeName(dtype));
  return {name, CaseUse::kTest, [=](OpRun& run) {
            TestTensor& rows = run.tensors.emplace_back(DType::kI32, Shape{count}).Assign(indices);
            TestTensor& x = run.Input(dtype, {groups * (gather ? period : count), width});
            TestTensor& y = run.Input(dtype, {groups * (gather ? count : period), width});
            run.Check("y", y, 1, [=, &x, &y] {
              const std::vector<double> from = x.InitialValues();
              std::vector<double> to = y.InitialValues();
              for (int64_t g = 0; g < groups; ++g) {
                for (int64_t i = 0; i < count; ++i) {
                  const int64_t whole = g * period + static_cast<int64_t>(indices[i]);
                  const int64_t picked = g * count + i;
                  for (int64_t c = 0; c < width; ++c) {
                    to[(gather ? picked : whole) * width + c] =
                        from[(gather ? whole : picked) * width + c];
                  }
                }
              }
              return to;
            });
            run.run = [=, &x, &rows, &y](const Stream& stream) {
              return gather ? GatherRows(stream, {x.view(), rows.view(), y.view(), period})
                            : ScatterRows(stream, {x.view(), rows.view(), y.view(), period});
            };
          }};
}

// A seventh of the positions of a batch, as in training on masked words.
OpCase DeviceCase(bool gather) {
  constexpr int64_t kTokens = int64_t{65536} * 7, kCount = 65536, kWidth = 2048;
  const std::string name = std::string(gather ? "gather_rows" : "scatter_rows") +
                           "/65536of458752x2048/" + std::string(DTypeName(DType::kBF16));
  return {name, CaseUse::kDeviceSpeed, [=](OpRun& run) {
            TestTensor& all = run.Input(DType::kBF16, {kTokens, kWidth});
            TestTensor& picked = run.Input(DType::kBF16, {kCount, kWidth});
            std::vector<double> indices;
            for (int64_t i = 0; i < kCount; ++i) indices.push_back(static_cast<double>(i * 7));
            TestTensor& rows = run.tensors.emplace_back(DType::kI32, Shape{kCount}).Assign(indices);
            run.run = [=, &all, &picked, &rows](const Stream& stream) {
              return gather
                         ? GatherRows(stream,
                                      {.x = all.view(), .rows = rows.view(), .y = picked.view()})
                         : ScatterRows(stream,
                                       {.x = picked.view(), .rows = rows.view(), .y = all.view()});
            };
            run.bytes = static_cast<double>(2 * picked.view().Bytes());
          }};
}

}  // namespace

std::vector<OpCase> GatherRowsCases() {
  std::vector<OpCase> cases = {DeviceCase(true), DeviceCase(false)};
  for (DType dtype : kFloatTypes) {
    for (int64_t count : {0, 1, 5}) {
      cases.push_back(GatherCase(count, 7, 3, dtype));
      cases.push_back(ScatterCase(count, 7, 3, dtype));
    }
    // Rows at multiples of 16 bytes that do not end at one.
    cases.push_back(GatherCase(5, 13, 3, dtype));
    cases.push_back(ScatterCase(5, 13, 3, dtype));
    for (const bool gather : {true, false}) {
      cases.push_back(ColumnsCase(gather, 6, 5, 1, dtype));
      cases.push_back(ColumnsCase(gather, 6, 5, 8, dtype));
      cases.push_back(ColumnsCase(gather, 20000, 7, 1, dtype));  // by several threads
    }
    // Wide enough for several threads.
    cases.push_back(GatherCase(5, 20000, 0, dtype));
    cases.push_back(ScatterCase(5, 20000, 0, dtype));
  }
  return cases;
}

}  // namespace weft::kernels::testing
