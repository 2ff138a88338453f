#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "common/spec/field.h"

namespace weft {

/// Whether all fields of two specs are equal. For specs without an operator.
template <SpecStruct T>
bool SameFields(const T& a, const T& b);

/// Whether every field of a spec has its default.
template <SpecStruct T>
bool HasDefaults(const T& spec) {
  return SameFields(spec, T{});
}

namespace internal {

template <class T>
bool SameValue(const T& a, const T& b) {
  if constexpr (SpecStruct<T>) {
    return SameFields(a, b);
  } else if constexpr (kIsVector<T>) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const auto& x, const auto& y) { return SameValue(x, y); });
  } else {
    return a == b;
  }
}

}  // namespace internal

template <SpecStruct T>
bool SameFields(const T& a, const T& b) {
  std::vector<const void*> fields;
  T::Fields(a, [&](const Field&, const auto& member) { fields.push_back(&member); });
  bool same = true;
  size_t next = 0;
  T::Fields(b, [&]<class M>(const Field&, const M& member) {
    same = same && internal::SameValue(*static_cast<const M*>(fields[next]), member);
    ++next;
  });
  return same;
}

}  // namespace weft
