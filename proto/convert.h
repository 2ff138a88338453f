#pragma once

#include <google/protobuf/message.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "common/json.h"
#include "common/spec/field.h"
#include "common/spec/field_check.h"

namespace weft {

/// A message as JSON: field names as in the .proto, enums by name, numbers as numbers, bytes as
/// text. Fields without presence are always written, absent ones with presence left out.
Json ProtoToJson(const google::protobuf::Message& message);

namespace internal {

/// Where a value is: text only once something is wrong with it.
struct FieldPlace {
  const FieldPlace* parent;
  std::string_view name;  ///< Of a field, or the key in a map.
  int64_t item = -1;      ///< In the list `parent`.

  std::string Text() const;
};

/// Finds the fields of a message by name, quickly where they come in its order.
class FieldFinder {
 public:
  explicit FieldFinder(const google::protobuf::Descriptor& descriptor) : descriptor_(descriptor) {}

  const google::protobuf::FieldDescriptor* Find(std::string_view name);

 private:
  const google::protobuf::Descriptor& descriptor_;
  int next_ = 0;  ///< Index of the field after the last one.
};

/// A field of a message, or an item of one that is repeated.
class FieldValue {
 public:
  FieldValue(const google::protobuf::Message& message,
             const google::protobuf::FieldDescriptor* field, int item = -1)
      : message_(message), field_(field), item_(item) {}

  void Get(int64_t& value) const;
  void Get(double& value) const;
  void Get(bool& value) const;
  void Get(std::string& value) const;
  /// That in the field.
  const google::protobuf::Message& Child() const;
  /// False only of one with presence.
  bool Has() const;
  /// Of one that is repeated.
  int Size() const;
  FieldValue Item(int item) const { return {message_, field_, item}; }
  /// Of an entry of a map, whose keys are text.
  std::string Key() const;
  FieldValue MapValue() const;

 private:
  const google::protobuf::Message& message_;
  const google::protobuf::FieldDescriptor* field_;
  int item_;
};

template <SpecStruct T>
Status ReadMessage(const google::protobuf::Message& message, const FieldPlace* place, T& spec);

template <class T>
Status ReadValue(const FieldValue& value, const Field& field, const FieldPlace& place, T& out) {
  if constexpr (kIsOptional<T>) {
    return ReadValue(value, field, place, out.emplace());
  } else if constexpr (SpecStruct<T>) {
    return ReadMessage(value.Child(), &place, out);
  } else if constexpr (kIsVector<T>) {
    const int size = value.Size();
    if (!IsInRange(field, size)) return LengthError(field, size, "items", place.Text());
    Field item_field = field;
    item_field.min = -std::numeric_limits<double>::infinity();
    item_field.max = std::numeric_limits<double>::infinity();
    out.clear();
    for (int i = 0; i < size; ++i) {
      typename T::value_type item{};
      WEFT_RETURN_IF_ERROR(ReadValue(value.Item(i), item_field, FieldPlace{&place, "", i}, item));
      out.push_back(std::move(item));
    }
    return OkStatus();
  } else if constexpr (kIsStringMap<T>) {
    out.clear();
    for (int i = 0; i < value.Size(); ++i) {
      const std::string key = value.Item(i).Key();
      WEFT_RETURN_IF_ERROR(
          ReadValue(value.Item(i).MapValue(), field, FieldPlace{&place, key}, out[key]));
    }
    return OkStatus();
  } else {
    value.Get(out);
    if constexpr (std::is_same_v<T, std::string>) {
      if (!IsChoice(field, out)) return ChoiceError(field, out, place.Text());
      if (field.choices.empty() && !IsInRange(field, static_cast<double>(out.size()))) {
        return LengthError(field, out.size(), "characters", place.Text());
      }
    } else if constexpr (!std::is_same_v<T, bool>) {
      const auto number = static_cast<double>(out);
      if (!IsInRange(field, number)) return RangeError(field, number, place.Text());
    }
    return OkStatus();
  }
}

template <SpecStruct T>
Status ReadMessage(const google::protobuf::Message& message, const FieldPlace* place, T& spec) {
  FieldFinder fields(*message.GetDescriptor());
  Status status;
  T::Fields(spec, [&](const Field& field, auto& member) {
    if (!status.ok()) return;
    const FieldValue value(message, fields.Find(field.name));
    const FieldPlace here{place, field.name};
    if (value.Has()) {
      status = ReadValue(value, field, here, member);
    } else if (field.required) {
      status = MissingError(field, place == nullptr ? "" : place->Text(), here.Text());
    }
  });
  return status;
}

/// Sets the fields of a message by name, or adds to them where they are repeated.
class MessageWriter {
 public:
  explicit MessageWriter(google::protobuf::Message& message);

  void Write(std::string_view name, int64_t value);
  void Write(std::string_view name, double value);
  void Write(std::string_view name, bool value);
  void Write(std::string_view name, const std::string& value);
  /// The message in that field; of a map, a new entry.
  google::protobuf::Message& Child(std::string_view name);

 private:
  google::protobuf::Message& message_;
  FieldFinder fields_;
  const google::protobuf::Reflection& reflection_;
};

template <SpecStruct T>
void WriteMessage(const T& spec, google::protobuf::Message& message);

template <class T>
void WriteMember(MessageWriter& writer, std::string_view name, const T& value) {
  if constexpr (SpecStruct<T>) {
    WriteMessage(value, writer.Child(name));
  } else if constexpr (kIsOptional<T>) {
    if (value) WriteMember(writer, name, *value);
  } else if constexpr (kIsVector<T>) {
    for (const typename T::value_type& item : value) WriteMember(writer, name, item);
  } else if constexpr (kIsStringMap<T>) {
    for (const auto& [key, item] : value) {
      MessageWriter entry(writer.Child(name));
      entry.Write("key", key);
      WriteMember(entry, "value", item);
    }
  } else {
    writer.Write(name, value);
  }
}

template <SpecStruct T>
void WriteMessage(const T& spec, google::protobuf::Message& message) {
  MessageWriter writer(message);
  T::Fields(spec, [&](const Field& field, const auto& member) {
    WriteMember(writer, field.name, member);
  });
}

}  // namespace internal

/// A plain struct of common/spec from its message of the same field names, with every check of
/// FromJson: range, choices, required fields. Absent fields keep the struct's default.
template <SpecStruct T>
Result<T> FromProto(const google::protobuf::Message& message) {
  T spec{};
  WEFT_RETURN_IF_ERROR(internal::ReadMessage(message, nullptr, spec));
  return spec;
}

/// The message of a plain struct. The two declare the same fields (tested), so it cannot fail.
template <class Message, SpecStruct T>
Message ToProto(const T& spec) {
  Message message;
  internal::WriteMessage(spec, message);
  return message;
}

}  // namespace weft
