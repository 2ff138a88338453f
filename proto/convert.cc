#include "proto/convert.h"

#include <google/protobuf/descriptor.h>

#include <string>

namespace weft {
namespace {

using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

/// Reads a singular field (index < 0) or one item of a repeated one.
Json FieldToJson(const Message& message, const FieldDescriptor* field, int index) {
  const Reflection* r = message.GetReflection();
  bool one = index < 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return one ? r->GetInt32(message, field) : r->GetRepeatedInt32(message, field, index);
    case FieldDescriptor::CPPTYPE_INT64:
      return one ? r->GetInt64(message, field) : r->GetRepeatedInt64(message, field, index);
    case FieldDescriptor::CPPTYPE_UINT32:
      return one ? r->GetUInt32(message, field) : r->GetRepeatedUInt32(message, field, index);
    case FieldDescriptor::CPPTYPE_UINT64:
      return one ? r->GetUInt64(message, field) : r->GetRepeatedUInt64(message, field, index);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return one ? r->GetDouble(message, field) : r->GetRepeatedDouble(message, field, index);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return one ? r->GetFloat(message, field) : r->GetRepeatedFloat(message, field, index);
    case FieldDescriptor::CPPTYPE_BOOL:
      return one ? r->GetBool(message, field) : r->GetRepeatedBool(message, field, index);
    case FieldDescriptor::CPPTYPE_ENUM:
      return (one ? r->GetEnum(message, field) : r->GetRepeatedEnum(message, field, index))->name();
    case FieldDescriptor::CPPTYPE_STRING:
      return one ? r->GetString(message, field) : r->GetRepeatedString(message, field, index);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ProtoToJson(one ? r->GetMessage(message, field)
                             : r->GetRepeatedMessage(message, field, index));
  }
  return {};
}

/// Sets a singular field, or adds to a repeated one.
Status JsonToField(const Json& json, const FieldDescriptor* field, Message& message) {
  const Reflection* r = message.GetReflection();
  bool add = field->is_repeated();
  auto wrong = [&](const char* expected) {
    return InvalidError(field->full_name() + " must be " + expected + ", not " +
                        internal::JsonTypeText(json));
  };
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_INT64:
    case FieldDescriptor::CPPTYPE_UINT64: {
      if (!json.is_number_integer()) return wrong("an integer");
      auto value = json.get<int64_t>();
      switch (field->cpp_type()) {
        case FieldDescriptor::CPPTYPE_INT32:
          add ? r->AddInt32(&message, field, static_cast<int32_t>(value))
              : r->SetInt32(&message, field, static_cast<int32_t>(value));
          break;
        case FieldDescriptor::CPPTYPE_UINT32:
          add ? r->AddUInt32(&message, field, static_cast<uint32_t>(value))
              : r->SetUInt32(&message, field, static_cast<uint32_t>(value));
          break;
        case FieldDescriptor::CPPTYPE_UINT64:
          add ? r->AddUInt64(&message, field, static_cast<uint64_t>(value))
              : r->SetUInt64(&message, field, static_cast<uint64_t>(value));
          break;
        default:
          add ? r->AddInt64(&message, field, value) : r->SetInt64(&message, field, value);
          break;
      }
      return OkStatus();
    }
    case FieldDescriptor::CPPTYPE_DOUBLE:
    case FieldDescriptor::CPPTYPE_FLOAT: {
      if (!json.is_number()) return wrong("a number");
      auto value = json.get<double>();
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
        add ? r->AddDouble(&message, field, value) : r->SetDouble(&message, field, value);
      } else {
        auto single = static_cast<float>(value);
        add ? r->AddFloat(&message, field, single) : r->SetFloat(&message, field, single);
      }
      return OkStatus();
    }
    case FieldDescriptor::CPPTYPE_BOOL:
      if (!json.is_boolean()) return wrong("a boolean");
      add ? r->AddBool(&message, field, json.get<bool>())
          : r->SetBool(&message, field, json.get<bool>());
      return OkStatus();
    case FieldDescriptor::CPPTYPE_ENUM: {
      const EnumValueDescriptor* value = nullptr;
      if (json.is_string()) value = field->enum_type()->FindValueByName(json.get<std::string>());
      if (value == nullptr) return wrong("a value of its enum");
      add ? r->AddEnum(&message, field, value) : r->SetEnum(&message, field, value);
      return OkStatus();
    }
    case FieldDescriptor::CPPTYPE_STRING:
      if (!json.is_string()) return wrong("a string");
      add ? r->AddString(&message, field, json.get<std::string>())
          : r->SetString(&message, field, json.get<std::string>());
      return OkStatus();
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return JsonToProto(
          json, add ? *r->AddMessage(&message, field) : *r->MutableMessage(&message, field));
  }
  return InternalError(field->full_name() + " has a type that is not mapped");
}

/// A map, whose keys are strings, as an object.
Json MapToJson(const Message& message, const FieldDescriptor* field) {
  const Reflection* reflection = message.GetReflection();
  Json object = Json::object();
  for (int k = 0; k < reflection->FieldSize(message, field); ++k) {
    const Message& entry = reflection->GetRepeatedMessage(message, field, k);
    const std::string key =
        entry.GetReflection()->GetString(entry, field->message_type()->map_key());
    object[key] = FieldToJson(entry, field->message_type()->map_value(), -1);
  }
  return object;
}

Status JsonToMap(const Json& json, const FieldDescriptor* field, Message& message) {
  if (!json.is_object()) {
    return InvalidError(field->full_name() + " must be an object, not " +
                        internal::JsonTypeText(json));
  }
  for (const auto& [key, value] : json.items()) {
    Message& entry = *message.GetReflection()->AddMessage(&message, field);
    entry.GetReflection()->SetString(&entry, field->message_type()->map_key(), key);
    WEFT_RETURN_IF_ERROR(JsonToField(value, field->message_type()->map_value(), entry));
  }
  return OkStatus();
}

}  // namespace

Json ProtoToJson(const Message& message) {
  Json object = Json::object();
  const Reflection* reflection = message.GetReflection();
  const auto* descriptor = message.GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    if (field->is_map()) {
      object[field->name()] = MapToJson(message, field);
    } else if (field->is_repeated()) {
      Json list = Json::array();
      for (int k = 0; k < reflection->FieldSize(message, field); ++k) {
        list.push_back(FieldToJson(message, field, k));
      }
      object[field->name()] = std::move(list);
    } else if (!field->has_presence() || reflection->HasField(message, field)) {
      object[field->name()] = FieldToJson(message, field, -1);
    }
  }
  return object;
}

Status JsonToProto(const Json& json, Message& message) {
  const auto* descriptor = message.GetDescriptor();
  if (!json.is_object()) {
    return InvalidError(descriptor->full_name() + " must be an object, not " +
                        internal::JsonTypeText(json));
  }
  for (const auto& [key, value] : json.items()) {
    const FieldDescriptor* field = descriptor->FindFieldByName(key);
    if (field == nullptr) return InvalidError(descriptor->full_name() + " has no field " + key);
    if (field->is_map()) {
      WEFT_RETURN_IF_ERROR(JsonToMap(value, field, message));
      continue;
    }
    if (!field->is_repeated()) {
      WEFT_RETURN_IF_ERROR(JsonToField(value, field, message));
      continue;
    }
    if (!value.is_array()) {
      return InvalidError(field->full_name() + " must be a list, not " +
                          internal::JsonTypeText(value));
    }
    for (const Json& item : value) WEFT_RETURN_IF_ERROR(JsonToField(item, field, message));
  }
  return OkStatus();
}

}  // namespace weft
