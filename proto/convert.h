#pragma once

#include <google/protobuf/message.h>

#include "common/json.h"
#include "common/spec/spec_json.h"

namespace weft {

/// A message as JSON: field names as in the .proto, enums by name, numbers as numbers, bytes as
/// text. Fields without presence are always written, absent ones with presence left out.
Json ProtoToJson(const google::protobuf::Message& message);

/// Fills `message` from JSON of the same shape; kInvalid names the field that does not fit.
Status JsonToProto(const Json& json, google::protobuf::Message& message);

/// A plain struct of common/spec from its message of the same field names, with every check of
/// FromJson: range, choices, required fields. Absent fields keep the struct's default.
template <SpecStruct T>
Result<T> FromProto(const google::protobuf::Message& message) {
  return FromJson<T>(ProtoToJson(message));
}

/// The message of a plain struct. The two declare the same fields (tested), so it cannot fail.
template <class Message, SpecStruct T>
Message ToProto(const T& spec) {
  Message message;
  Status status = JsonToProto(ToJson(spec), message);
  WEFT_CHECK(status.ok(), status.message());
  return message;
}

}  // namespace weft
