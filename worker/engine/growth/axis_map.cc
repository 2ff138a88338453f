#include "worker/engine/growth/axis_map.h"

#include <algorithm>
#include <cmath>

namespace weft::engine {
namespace {

/// Positions of a side of `extent` that repeat position `i` of one of `period`.
int64_t Repetitions(int64_t extent, int64_t period, int64_t i) {
  return (extent - i + period - 1) / period;
}

/// What each pixel of a side is the sum of.
std::vector<std::vector<AxisMap::Term>> ResizedSide(int64_t old_side, int64_t new_side) {
  const double ratio = static_cast<double>(old_side) / static_cast<double>(new_side);
  std::vector<std::vector<AxisMap::Term>> side;
  for (int64_t i = 0; i < new_side; ++i) {
    const double at = std::clamp((static_cast<double>(i) + 0.5) * ratio - 0.5, 0.0,
                                 static_cast<double>(old_side - 1));
    const auto first = static_cast<int64_t>(at);
    const double share = at - static_cast<double>(first);
    std::vector<AxisMap::Term>& terms = side.emplace_back();
    terms.push_back({first, 1 - share});
    if (share > 0) terms.push_back({first + 1, share});
  }
  return side;
}

}  // namespace

AxisMap AxisMap::Identity(int64_t extent) {
  return Written(extent, extent);
}

AxisMap AxisMap::Written(int64_t old_extent, int64_t new_extent) {
  AxisMap map;
  map.old_size_ = old_extent;
  for (int64_t i = 0; i < new_extent; ++i) {
    std::vector<Term> terms;
    if (new_extent >= old_extent) {
      terms.push_back({i % old_extent, 1});
    } else {
      const auto count = static_cast<double>(Repetitions(old_extent, new_extent, i));
      for (int64_t old = i; old < old_extent; old += new_extent) terms.push_back({old, 1 / count});
    }
    map.Add(terms);
  }
  return map;
}

AxisMap AxisMap::Read(int64_t old_extent, int64_t new_extent) {
  AxisMap map;
  map.old_size_ = old_extent;
  for (int64_t i = 0; i < new_extent; ++i) {
    std::vector<Term> terms;
    if (new_extent >= old_extent) {
      const int64_t old = i % old_extent;
      terms.push_back({old, 1 / static_cast<double>(Repetitions(new_extent, old_extent, old))});
    } else {
      for (int64_t old = i; old < old_extent; old += new_extent) terms.push_back({old, 1});
    }
    map.Add(terms);
  }
  return map;
}

AxisMap AxisMap::ReadEvenly(int64_t old_extent, int64_t new_extent) {
  const auto before = static_cast<double>(old_extent), now = static_cast<double>(new_extent);
  // Up to twice as many: new - old terms are there twice, which has four times the variance, and
  // the others once.
  const double factor =
      now <= 2 * before ? std::sqrt(before / (3 * now - 2 * before)) : before / now;
  AxisMap map;
  map.old_size_ = old_extent;
  for (int64_t i = 0; i < new_extent; ++i) {
    const Term term{i % old_extent, factor};
    map.Add({&term, 1});
  }
  return map;
}

AxisMap AxisMap::Resized(int64_t old_side, int64_t new_side) {
  const auto side = ResizedSide(old_side, new_side);
  AxisMap map;
  map.old_size_ = old_side * old_side;
  for (const std::vector<Term>& rows : side) {
    for (const std::vector<Term>& columns : side) {
      std::vector<Term> terms;
      for (const Term& row : rows) {
        for (const Term& column : columns) {
          terms.push_back({row.old * old_side + column.old, row.factor * column.factor});
        }
      }
      map.Add(terms);
    }
  }
  return map;
}

std::span<const AxisMap::Term> AxisMap::operator[](int64_t i) const {
  const auto index = static_cast<size_t>(i);
  const size_t begin = index == 0 ? 0 : ends_[index - 1];
  return std::span(terms_).subspan(begin, ends_[index] - begin);
}

void AxisMap::Append(const AxisMap& below) {
  const int64_t first = old_size_;
  old_size_ += below.old_size_;
  for (int64_t i = 0; i < below.size(); ++i) {
    const std::span<const Term> terms = below[i];
    std::vector<Term> moved(terms.begin(), terms.end());
    for (Term& term : moved) term.old += first;
    Add(moved);
  }
}

AxisMap AxisMap::Within(int64_t first, int64_t last) const {
  AxisMap map;
  map.old_size_ = old_size_;
  for (int64_t i = 0; i < size(); ++i) {
    map.Add(i >= first && i < last ? (*this)[i] : std::span<const Term>());
  }
  return map;
}

AxisMap AxisMap::Squared() const {
  AxisMap map = *this;
  for (Term& term : map.terms_) term.factor *= term.factor;
  return map;
}

void AxisMap::Add(std::span<const Term> terms) {
  terms_.insert(terms_.end(), terms.begin(), terms.end());
  ends_.push_back(terms_.size());
}

}  // namespace weft::engine
