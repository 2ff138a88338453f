#include "worker/engine/models/row_problems.h"

#include <utility>

#include "worker/engine/nn/rows.h"

namespace weft::engine {
namespace {

/// Which of `count` rows, each once and in any order, go to the one and to the other part.
std::pair<std::vector<int32_t>, std::vector<int32_t>> Parted(Sides& sides, int64_t count) {
  std::vector<int32_t> rows;
  for (int64_t i = 0; i < count; ++i) {
    rows.insert(rows.begin() + sides.Below(i + 1), static_cast<int32_t>(i));
  }
  const int64_t first = 1 + sides.Below(count);
  return {{rows.begin(), rows.begin() + first}, {rows.begin() + first, rows.end()}};
}

}  // namespace

Problem GatherProblem(Sides& sides) {
  Problem p;
  const int64_t rows = sides.Draw();
  p.inputs = {sides.Normal(rows, sides.Draw())};
  const std::vector<int32_t> picked = Parted(sides, rows).first;
  p.run = [picked](Context& c, Tape& t, const std::vector<Value>& in) {
    return One(GatherRows(c, t, in[0], Indices(c, picked)));
  };
  p.reference = [picked](const std::vector<Matrix>& in) {
    Matrix y(static_cast<int64_t>(picked.size()), in[0].columns);
    for (int64_t r = 0; r < y.rows; ++r) {
      for (int64_t c = 0; c < y.columns; ++c) y.at(r, c) = in[0].at(picked[r], c);
    }
    return std::vector<Matrix>{y};
  };
  return p;
}

Problem ScatterProblem(Sides& sides) {
  Problem p;
  const int64_t count = sides.Draw();
  const std::vector<int32_t> rows = Parted(sides, count).first;
  p.inputs = {sides.Normal(static_cast<int64_t>(rows.size()), sides.Draw())};
  p.run = [rows, count](Context& c, Tape& t, const std::vector<Value>& in) {
    return One(ScatterRows(c, t, in[0], Indices(c, rows), count));
  };
  p.reference = [rows, count](const std::vector<Matrix>& in) {
    Matrix y(count, in[0].columns);
    for (int64_t r = 0; r < in[0].rows; ++r) {
      for (int64_t c = 0; c < y.columns; ++c) y.at(rows[r], c) = in[0].at(r, c);
    }
    return std::vector<Matrix>{y};
  };
  return p;
}

Problem MergeProblem(Sides& sides) {
  Problem p;
  const int64_t rows = 1 + sides.Draw(), width = sides.Draw();
  auto parted = Parted(sides, rows);
  if (parted.second.empty()) {
    parted.second.push_back(parted.first.back());
    parted.first.pop_back();
  }
  const auto [a, b] = parted;
  p.inputs = {sides.Normal(static_cast<int64_t>(a.size()), width),
              sides.Normal(static_cast<int64_t>(b.size()), width)};
  p.run = [a = a, b = b](Context& c, Tape& t, const std::vector<Value>& in) {
    return One(MergeRows(c, t, in[0], Indices(c, a), in[1], Indices(c, b)));
  };
  p.reference = [a = a, b = b, rows, width](const std::vector<Matrix>& in) {
    Matrix y(rows, width);
    for (int64_t c = 0; c < width; ++c) {
      for (size_t r = 0; r < a.size(); ++r) y.at(a[r], c) = in[0].at(static_cast<int64_t>(r), c);
      for (size_t r = 0; r < b.size(); ++r) y.at(b[r], c) = in[1].at(static_cast<int64_t>(r), c);
    }
    return std::vector<Matrix>{y};
  };
  return p;
}

Problem RepeatProblem(Sides& sides) {
  Problem p;
  const int64_t times = sides.Draw(), before = sides.Below(3), behind = sides.Below(3);
  p.inputs = {sides.Normal(sides.Draw(), sides.Draw())};
  const int64_t columns = before + p.inputs[0].columns + behind;
  p.run = [=](Context& c, Tape& t, const std::vector<Value>& in) {
    return One(RepeatRows(c, t, in[0], times, before, columns));
  };
  p.reference = [=](const std::vector<Matrix>& in) {
    Matrix y(times * in[0].rows, columns);
    for (int64_t r = 0; r < y.rows; ++r) {
      for (int64_t c = 0; c < in[0].columns; ++c) {
        y.at(r, before + c) = in[0].at(r % in[0].rows, c);
      }
    }
    return std::vector<Matrix>{y};
  };
  return p;
}

}  // namespace weft::engine
