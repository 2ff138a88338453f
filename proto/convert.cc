#include "proto/convert.h"

#include <google/protobuf/descriptor.h>

#include <string>

namespace weft {
namespace {

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

namespace internal {

std::string FieldPlace::Text() const {
  const std::string before = parent == nullptr ? "" : parent->Text();
  if (item >= 0) return before + "[" + std::to_string(item) + "]";
  return before + (before.empty() ? "" : ".") + std::string(name);
}

const FieldDescriptor* FieldFinder::Find(std::string_view name) {
  // Fields come in the order of their message, as a rule.
  const FieldDescriptor* field =
      next_ < descriptor_.field_count() ? descriptor_.field(next_) : nullptr;
  if (field == nullptr || field->name() != name) {
    field = descriptor_.FindFieldByName(std::string(name));
  }
  WEFT_CHECK(field != nullptr, descriptor_.full_name() + " has no field " + std::string(name));
  next_ = field->index() + 1;
  return field;
}

void FieldValue::Get(int64_t& value) const {
  const Reflection* r = message_.GetReflection();
  value = item_ < 0 ? r->GetInt64(message_, field_) : r->GetRepeatedInt64(message_, field_, item_);
}

void FieldValue::Get(double& value) const {
  const Reflection* r = message_.GetReflection();
  value =
      item_ < 0 ? r->GetDouble(message_, field_) : r->GetRepeatedDouble(message_, field_, item_);
}

void FieldValue::Get(bool& value) const {
  const Reflection* r = message_.GetReflection();
  value = item_ < 0 ? r->GetBool(message_, field_) : r->GetRepeatedBool(message_, field_, item_);
}

void FieldValue::Get(std::string& value) const {
  const Reflection* r = message_.GetReflection();
  value =
      item_ < 0 ? r->GetString(message_, field_) : r->GetRepeatedString(message_, field_, item_);
}

const Message& FieldValue::Child() const {
  const Reflection* r = message_.GetReflection();
  return item_ < 0 ? r->GetMessage(message_, field_)
                   : r->GetRepeatedMessage(message_, field_, item_);
}

bool FieldValue::Has() const {
  return !field_->has_presence() || message_.GetReflection()->HasField(message_, field_);
}

int FieldValue::Size() const {
  return message_.GetReflection()->FieldSize(message_, field_);
}

std::string FieldValue::Key() const {
  const Message& entry = Child();
  return entry.GetReflection()->GetString(entry, field_->message_type()->map_key());
}

FieldValue FieldValue::MapValue() const {
  return {Child(), field_->message_type()->map_value()};
}

MessageWriter::MessageWriter(Message& message)
    : message_(message), fields_(*message.GetDescriptor()), reflection_(*message.GetReflection()) {}

void MessageWriter::Write(std::string_view name, int64_t value) {
  const FieldDescriptor* field = fields_.Find(name);
  field->is_repeated() ? reflection_.AddInt64(&message_, field, value)
                       : reflection_.SetInt64(&message_, field, value);
}

void MessageWriter::Write(std::string_view name, double value) {
  const FieldDescriptor* field = fields_.Find(name);
  field->is_repeated() ? reflection_.AddDouble(&message_, field, value)
                       : reflection_.SetDouble(&message_, field, value);
}

void MessageWriter::Write(std::string_view name, bool value) {
  const FieldDescriptor* field = fields_.Find(name);
  field->is_repeated() ? reflection_.AddBool(&message_, field, value)
                       : reflection_.SetBool(&message_, field, value);
}

void MessageWriter::Write(std::string_view name, const std::string& value) {
  const FieldDescriptor* field = fields_.Find(name);
  field->is_repeated() ? reflection_.AddString(&message_, field, value)
                       : reflection_.SetString(&message_, field, value);
}

Message& MessageWriter::Child(std::string_view name) {
  const FieldDescriptor* field = fields_.Find(name);
  return field->is_repeated() ? *reflection_.AddMessage(&message_, field)
                              : *reflection_.MutableMessage(&message_, field);
}

}  // namespace internal
}  // namespace weft
