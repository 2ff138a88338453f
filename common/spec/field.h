#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace weft {

/// What is known of one field of a spec besides its value: declared once, used for reading,
/// writing, error messages, the reference pages and the mapping to protobuf. A spec is a plain
/// struct with a static
///   template <class Self, class Visitor> static void Fields(Self& self, Visitor&& visit)
/// that calls visit(Field("name", "doc")..., self.member) for each field; the default of a field
/// is its value in a default-constructed struct.
struct Field {
  std::string_view name;
  std::string_view doc;   ///< One line; ends with a full stop.
  std::string_view unit;  ///< "steps", "bytes", "seconds"; "" for none.
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  /// The legal strings; empty: any. Like a field itself, those of a list live as long as the call
  /// of the visitor.
  std::span<const std::string_view> choices;
  bool required = false;

  Field(std::string_view field_name, std::string_view field_doc)
      : name(field_name), doc(field_doc) {}

  Field& Unit(std::string_view u) {
    unit = u;
    return *this;
  }
  /// Inclusive bounds of a number, or of the length of a string or list.
  Field& Range(double lowest, double highest) {
    min = lowest;
    max = highest;
    return *this;
  }
  Field& OneOf(std::initializer_list<std::string_view> legal) {
    choices = {legal.begin(), legal.size()};
    return *this;
  }
  Field& OneOf(std::span<const std::string_view> legal) {
    choices = legal;
    return *this;
  }
  Field& Required() {
    required = true;
    return *this;
  }
};

namespace internal {
struct AnyVisitor {
  template <class T>
  void operator()(const Field&, T&) const {}
};
}  // namespace internal

/// A struct that declares its fields as said at Field.
template <class T>
concept SpecStruct = requires(T& t) {
  T::Fields(t, internal::AnyVisitor{});
};

template <class T>
inline constexpr bool kIsVector = false;
template <class T>
inline constexpr bool kIsVector<std::vector<T>> = true;

template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;

template <class T>
inline constexpr bool kIsStringMap = false;
template <class T>
inline constexpr bool kIsStringMap<std::map<std::string, T>> = true;

}  // namespace weft
