#pragma once

#include <string>
#include <type_traits>

#include "common/json.h"
#include "common/spec/field.h"

namespace weft {

/// Appends `value`, a spec or a member of one, to `text`: the JSON of ToJson, without the values in
/// between. Fields have the order of the spec.
template <class T>
void AppendJson(const T& value, std::string& text) {
  const auto append_all = [&text](const auto& items, char open, char close, auto append) {
    text += open;
    for (const auto& item : items) {
      append(item);
      text += ',';
    }
    if (text.back() == ',') text.pop_back();
    text += close;
  };
  if constexpr (SpecStruct<T>) {
    text += '{';
    T::Fields(value, [&]<class Member>(const Field& field, const Member& member) {
      const auto append = [&](const auto& present) {
        if (text.back() != '{') text += ',';
        AppendJsonString(field.name, text);
        text += ':';
        AppendJson(present, text);
      };
      if constexpr (kIsOptional<Member>) {
        if (member) append(*member);
      } else {
        append(member);
      }
    });
    text += '}';
  } else if constexpr (kIsVector<T>) {
    append_all(value, '[', ']', [&](const auto& item) { AppendJson(item, text); });
  } else if constexpr (kIsStringMap<T>) {
    append_all(value, '{', '}', [&](const auto& item) {
      AppendJsonString(item.first, text);
      text += ':';
      AppendJson(item.second, text);
    });
  } else if constexpr (std::is_same_v<T, std::string>) {
    AppendJsonString(value, text);
  } else if constexpr (std::is_same_v<T, bool>) {
    text += value ? "true" : "false";
  } else {
    AppendJsonNumber(value, text);
  }
}

/// The JSON of a spec, every field written. Absent optionals are left out.
template <SpecStruct T>
std::string ToJsonText(const T& spec) {
  std::string text;
  AppendJson(spec, text);
  return text;
}

}  // namespace weft
