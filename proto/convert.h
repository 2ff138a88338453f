#pragma once

#include <google/protobuf/message.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "common/json.h"
#include "common/spec/spec_json.h"

namespace weft {

/// A message as JSON: field names as in the .proto, enums by name, numbers as numbers, bytes as
/// text. Fields without presence are always written, absent ones with presence left out.
Json ProtoToJson(const google::protobuf::Message& message);

/// A plain struct of common/spec from its message of the same field names, with every check of
/// FromJson: range, choices, required fields. Absent fields keep the struct's default.
template <SpecStruct T>
Result<T> FromProto(const google::protobuf::Message& message) {
  return FromJson<T>(ProtoToJson(message));
}

namespace internal {

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
  const google::protobuf::FieldDescriptor* Find(std::string_view name);

  google::protobuf::Message& message_;
  const google::protobuf::Descriptor& descriptor_;
  const google::protobuf::Reflection& reflection_;
  int next_ = 0;  ///< Index of the field after the last one.
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

/// The message of a plain struct. The two declare the same fields (tested), so it cannot fail.
template <class Message, SpecStruct T>
Message ToProto(const T& spec) {
  Message message;
  internal::WriteMessage(spec, message);
  return message;
}

}  // namespace weft
