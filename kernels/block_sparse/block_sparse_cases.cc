#include "kernels/block_sparse/block_sparse.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

struct Problem {
  std::shared_ptr<BlockPattern> pattern;
  int64_t count;
  DType dtype;
  DType stored;
  int padding = 0;  ///< Between rows of x and y: odd, or a multiple of 16 bytes.

  int64_t size() const { return pattern->size(); }
  int64_t in() const { return pattern->columns() * size(); }
  int64_t out() const { return pattern->rows() * size(); }
  Shape Blocks() const { return {pattern->count() * size(), size()}; }
  std::string Name(const std::string& op, bool accumulate) const {
    return "block_sparse_" + op + "/" + std::to_string(count) + "x" + std::to_string(in()) + "x" +
           std::to_string(out()) + "by" + std::to_string(size()) + "/" +
           std::string(DTypeName(dtype)) + "-" + std::string(DTypeName(stored)) +
           (padding > 0 ? "/padded" + std::to_string(padding) : "") +
           (accumulate ? "/accumulate" : "");
  }
};

/// Rows and columns of the grid without a block, with one and with several.
std::shared_ptr<BlockPattern> SmallPattern(int64_t size) {
  return std::make_shared<BlockPattern>(
      size, 4, 3, std::vector<BlockPattern::Place>{{0, 0}, {0, 2}, {1, 1}, {3, 0}, {3, 1}, {3, 2}});
}

/// Every fourth block of each row.
std::shared_ptr<BlockPattern> QuarterPattern(int64_t rows, int64_t columns) {
  std::vector<BlockPattern::Place> places;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = i % 4; j < columns; j += 4) places.push_back({i, j});
  }
  return std::make_shared<BlockPattern>(32, rows, columns, places);
}

/// Calls fn(block element, row of B, column of B) for all elements of blocks.
template <class Fn>
void ForEachElement(const BlockPattern& pattern, Fn&& fn) {
  const int64_t size = pattern.size();
  const BlockPlace* const places = pattern.ByRow(DeviceType::kCpu).places;
  for (int64_t b = 0; b < pattern.count(); ++b) {
    for (int64_t s = 0; s < size; ++s) {
      for (int64_t p = 0; p < size; ++p) {
        fn((b * size + s) * size + p, places[b].row * size + s, places[b].column * size + p);
      }
    }
  }
}

/// Blocks as products read them: rounded to the type of the other operand.
std::vector<double> Rounded(const TestTensor& blocks, DType dtype) {
  std::vector<double> values = blocks.Values();
  for (double& value : values) {
    const auto narrow = static_cast<float>(value);
    if (dtype == DType::kBF16) value = ToFloat(ToBFloat16(narrow));
    if (dtype == DType::kF16) value = ToFloat(ToHalf(narrow));
  }
  return values;
}

void CountWork(OpRun& run, const Problem& problem, int64_t block_bytes) {
  const auto numbers = static_cast<double>(problem.Blocks().Elements());
  run.flops = 2.0 * static_cast<double>(problem.count) * numbers;
  run.bytes = static_cast<double>(problem.count * (problem.in() + problem.out())) *
                  static_cast<double>(DTypeSize(problem.dtype)) +
              static_cast<double>(block_bytes) * numbers;
  run.compute = problem.dtype;
}

OpCase ForwardCase(const Problem& problem, bool accumulate, CaseUse use = CaseUse::kTest) {
  return {
      problem.Name("forward", accumulate), use, [=](OpRun& run) {
        TestTensor& x = run.Input(problem.dtype, {problem.count, problem.in()}, problem.padding);
        TestTensor& blocks = run.Input(problem.stored, problem.Blocks());
        TestTensor& bias = run.Input(DType::kF32, {problem.out()});
        TestTensor& y = run.Input(problem.dtype, {problem.count, problem.out()}, problem.padding);
        run.Check("y", y, 3 * problem.size(), [=, &x, &blocks, &bias, &y] {
          std::vector<double> sums = y.InitialValues();
          const std::vector<double> shift = bias.Values();
          for (size_t i = 0; !accumulate && i < sums.size(); ++i) sums[i] = shift[i % shift.size()];
          const std::vector<double> values = x.Values(), b = Rounded(blocks, problem.dtype);
          ForEachElement(*problem.pattern, [&](int64_t i, int64_t row, int64_t column) {
            for (int64_t n = 0; n < problem.count; ++n) {
              sums[n * problem.out() + row] += values[n * problem.in() + column] * b[i];
            }
          });
          return sums;
        });
        run.run = [=, &x, &blocks, &bias, &y](const Stream& stream) -> Status {
          WEFT_RETURN_IF_ERROR(problem.pattern->CopyTo(stream.device));
          return BlockSparseForward(
              stream, {problem.pattern.get(), x.view(), blocks.view(),
                       accumulate ? TensorView() : bias.view(), y.view(), accumulate});
        };
        CountWork(run, problem, static_cast<int64_t>(DTypeSize(problem.stored)));
      }};
}

OpCase InputCase(const Problem& problem, bool accumulate, CaseUse use = CaseUse::kTest) {
  return {
      problem.Name("backward_input", accumulate), use, [=](OpRun& run) {
        TestTensor& dy = run.Input(problem.dtype, {problem.count, problem.out()}, problem.padding);
        TestTensor& blocks = run.Input(problem.stored, problem.Blocks());
        TestTensor& dx = run.Input(problem.dtype, {problem.count, problem.in()}, problem.padding);
        run.Check("dx", dx, 3 * problem.size(), [=, &dy, &blocks, &dx] {
          std::vector<double> sums = dx.InitialValues();
          if (!accumulate) sums.assign(sums.size(), 0.0);
          const std::vector<double> values = dy.Values(), b = Rounded(blocks, problem.dtype);
          ForEachElement(*problem.pattern, [&](int64_t i, int64_t row, int64_t column) {
            for (int64_t n = 0; n < problem.count; ++n) {
              sums[n * problem.in() + column] += values[n * problem.out() + row] * b[i];
            }
          });
          return sums;
        });
        run.run = [=, &dy, &blocks, &dx](const Stream& stream) -> Status {
          WEFT_RETURN_IF_ERROR(problem.pattern->CopyTo(stream.device));
          return BlockSparseBackwardInput(
              stream, {problem.pattern.get(), dy.view(), blocks.view(), dx.view(), accumulate});
        };
        CountWork(run, problem, static_cast<int64_t>(DTypeSize(problem.stored)));
      }};
}

OpCase WeightCase(const Problem& problem, bool accumulate, CaseUse use = CaseUse::kTest) {
  return {
      problem.Name("backward_weight", accumulate), use, [=](OpRun& run) {
        TestTensor& x = run.Input(problem.dtype, {problem.count, problem.in()}, problem.padding);
        TestTensor& dy = run.Input(problem.dtype, {problem.count, problem.out()}, problem.padding);
        TestTensor& d = run.Input(DType::kF32, problem.Blocks());
        run.Check("dblocks", d, problem.count, [=, &x, &dy, &d] {
          std::vector<double> sums = d.InitialValues();
          const std::vector<double> left = dy.Values(), right = x.Values();
          ForEachElement(*problem.pattern, [&](int64_t i, int64_t row, int64_t column) {
            if (!accumulate) sums[i] = 0;
            for (int64_t n = 0; n < problem.count; ++n) {
              sums[i] += left[n * problem.out() + row] * right[n * problem.in() + column];
            }
          });
          return sums;
        });
        run.run = [=, &x, &dy, &d](const Stream& stream) -> Status {
          WEFT_RETURN_IF_ERROR(problem.pattern->CopyTo(stream.device));
          return BlockSparseBackwardWeight(
              stream, {problem.pattern.get(), x.view(), dy.view(), d.view(), accumulate});
        };
        CountWork(run, problem, accumulate ? 8 : 4);
      }};
}

void AddSpeedCases(std::vector<OpCase>& cases) {
  const auto add = [&](const Problem& problem, CaseUse use) {
    cases.push_back(ForwardCase(problem, false, use));
    cases.push_back(InputCase(problem, false, use));
    cases.push_back(WeightCase(problem, true, use));
  };
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    add({QuarterPattern(96, 24), 2048, dtype, DType::kF32}, CaseUse::kSpeed);
  }
  add({QuarterPattern(96, 24), 65536, DType::kBF16, DType::kF32}, CaseUse::kDeviceSpeed);
}

}  // namespace

std::vector<OpCase> BlockSparseCases() {
  std::vector<OpCase> cases;
  for (DType dtype : kFloatTypes) {
    for (DType stored : kMatrixTypes) {
      // No rows, few, and several tiles; sides of one vector, of several, and of no whole tile.
      for (const auto& [count, size] :
           {std::pair<int64_t, int64_t>{0, 16}, {1, 16}, {13, 32}, {130, 48}, {33, 96}}) {
        for (const int padding : {5, 8}) {
          if (padding == 5 && count > 13) continue;
          const Problem problem{SmallPattern(size), count, dtype, stored, padding};
          for (const bool accumulate : {false, true}) {
            cases.push_back(ForwardCase(problem, accumulate));
            cases.push_back(InputCase(problem, accumulate));
            if (stored == DType::kF32) cases.push_back(WeightCase(problem, accumulate));
          }
        }
      }
    }
  }
  AddSpeedCases(cases);
  return cases;
}

}  // namespace weft::kernels::testing
