#pragma once

#include <string>
#include <type_traits>

#include "common/spec/field.h"

namespace weft {

/// Appends `value`, a spec or a member of one, to `key`: keys of two specs are equal where all
/// their members are. For maps in memory: it takes less time than JSON, and is not the same on all
/// machines.
template <class T>
void AppendKey(const T& value, std::string& key) {
  const auto append_number = [&key](auto number) {
    key.append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  if constexpr (SpecStruct<T>) {
    T::Fields(value, [&](const Field&, const auto& member) { AppendKey(member, key); });
  } else if constexpr (std::is_same_v<T, std::string>) {
    append_number(value.size());
    key += value;
  } else if constexpr (kIsOptional<T>) {
    append_number(value.has_value());
    if (value) AppendKey(*value, key);
  } else if constexpr (kIsVector<T>) {
    append_number(value.size());
    for (const auto& item : value) AppendKey(item, key);
  } else if constexpr (kIsStringMap<T>) {
    append_number(value.size());
    for (const auto& [name, item] : value) {
      AppendKey(name, key);
      AppendKey(item, key);
    }
  } else {
    static_assert(std::is_arithmetic_v<T>);
    append_number(value);
  }
}

}  // namespace weft
