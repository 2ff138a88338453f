#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/json.h"
#include "common/spec/field.h"
#include "common/spec/field_check.h"
#include "common/spec/spec_json_fwd.h"
#include "common/status.h"

namespace weft {

/// Reads a message from JSON without line numbers.
template <SpecStruct T>
Result<T> FromJson(const Json& json);

/// A table row of the reference page.
struct FieldReference {
  std::string path;           ///< "train.steps", "data.train[]"
  std::string type;           ///< "integer", "number", "boolean", "string", "list of string", ...
  std::string default_value;  ///< As JSON; "required" when there is none.
  std::string unit;
  std::string legal;  ///< Range or choices, "" when anything goes.
  std::string doc;
};

/// Every leaf field of a spec, in declared order.
template <SpecStruct T>
std::vector<FieldReference> DescribeFields();

// ---------------------------------------------------------------------------------------------

namespace internal {

template <class T>
Json ValueToJson(const T& value) {
  if constexpr (SpecStruct<T>) {
    return ToJson(value);
  } else if constexpr (kIsVector<T>) {
    Json list = Json::array();
    for (const auto& item : value) list.push_back(ValueToJson(item));
    return list;
  } else if constexpr (kIsStringMap<T>) {
    Json object = Json::object();
    for (const auto& [key, item] : value) object[key] = ValueToJson(item);
    return object;
  } else {
    return value;
  }
}

template <class T>
void WriteField(Json& object, const Field& field, const T& value) {
  if constexpr (kIsOptional<T>) {
    if (value) object[std::string(field.name)] = ValueToJson(*value);
  } else {
    object[std::string(field.name)] = ValueToJson(value);
  }
}

template <class T>
std::string TypeName() {
  if constexpr (std::is_same_v<T, bool>)
    return "boolean";
  else if constexpr (std::is_integral_v<T>)
    return "integer";
  else if constexpr (std::is_floating_point_v<T>)
    return "number";
  else if constexpr (std::is_same_v<T, std::string>)
    return "string";
  else if constexpr (kIsVector<T>)
    return "list of " + TypeName<typename T::value_type>();
  else if constexpr (kIsOptional<T>)
    return TypeName<typename T::value_type>();
  else if constexpr (kIsStringMap<T>)
    return "map of " + TypeName<typename T::mapped_type>();
  else
    return "object";
}

std::string JsonTypeText(const Json& json);

/// An object whose fields are being read.
struct ReadObject {
  const Json& json;
  const std::string& path;
  std::vector<std::string_view> known = {};  ///< Names of the fields so far.
  size_t found = 0;                          ///< Those that it has.
  std::string child = "";                    ///< Path of the last one.
  Status status = OkStatus();
};

class Reader {
 public:
  explicit Reader(const Document& document) : document_(document) {}

  template <class T>
  Status Read(const Json& json, const Field& field, const std::string& path, T& out);

  template <SpecStruct T>
  Status ReadStruct(const Json& json, const std::string& path, T& out) {
    if (!json.is_object()) return WrongType<T>(json, path);
    ReadObject object{json, path};
    T::Fields(out,
              [&](const Field& field, auto& member) { ReadField(*this, object, field, member); });
    return Close(object);
  }

  /// The value of the field; null when there is none, or something was wrong before.
  const Json* Next(ReadObject& object, const Field& field);

 private:
  template <class T>
  Status WrongType(const Json& json, const std::string& path) {
    return WrongType(TypeName<T>(), json, path);
  }
  Status WrongType(const std::string& wanted, const Json& json, const std::string& path);
  /// Says what was wrong; an unknown name first: it is often the misspelt form of one reported
  /// missing.
  Status Close(const ReadObject& object);
  Status UnknownField(const std::string& key, const std::string& parent,
                      const std::vector<std::string_view>& known);
  Status CheckRange(const Field& field, double value, const std::string& path);
  Status CheckLength(const Field& field, size_t length, const char* what, const std::string& path);

  const Document& document_;
};

template <class T>
Status Reader::Read(const Json& json, const Field& field, const std::string& path, T& out) {
  if constexpr (kIsOptional<T>) {
    if (json.is_null()) {
      out.reset();
      return OkStatus();
    }
    return Read(json, field, path, out.emplace());
  } else if constexpr (SpecStruct<T>) {
    return ReadStruct(json, path, out);
  } else if constexpr (kIsVector<T>) {
    if (!json.is_array()) return WrongType<T>(json, path);
    if (Status s = CheckLength(field, json.size(), "items", path); !s.ok()) return s;
    Field item_field = field;
    item_field.min = -std::numeric_limits<double>::infinity();
    item_field.max = std::numeric_limits<double>::infinity();
    out.clear();
    for (size_t i = 0; i < json.size(); ++i) {
      typename T::value_type item{};
      WEFT_RETURN_IF_ERROR(Read(json[i], item_field, path + "[" + std::to_string(i) + "]", item));
      out.push_back(std::move(item));
    }
    return OkStatus();
  } else if constexpr (kIsStringMap<T>) {
    if (!json.is_object()) return WrongType<T>(json, path);
    out.clear();
    for (const auto& [key, child] : json.items()) {
      WEFT_RETURN_IF_ERROR(Read(child, field, path + "." + key, out[key]));
    }
    return OkStatus();
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!json.is_boolean()) return WrongType<T>(json, path);
    out = json.get<bool>();
    return OkStatus();
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!json.is_string()) return WrongType<T>(json, path);
    out = json.get<std::string>();
    if (!IsChoice(field, out)) return ChoiceError(field, out, document_.Locate(path));
    if (!field.choices.empty()) return OkStatus();
    return CheckLength(field, out.size(), "characters", path);
  } else if constexpr (std::is_integral_v<T>) {
    if (json.is_number_float()) {  // 1e6 is an integer to people
      auto real = json.get<double>();
      if (std::nearbyint(real) != real || std::fabs(real) > 9e15) return WrongType<T>(json, path);
      out = static_cast<T>(real);
    } else if (json.is_number_integer()) {
      if (json.is_number_unsigned() &&
          json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<T>::max())) {
        return WrongType<T>(json, path);
      }
      out = json.get<T>();
    } else {
      return WrongType<T>(json, path);
    }
    return CheckRange(field, static_cast<double>(out), path);
  } else {
    if (!json.is_number()) return WrongType<T>(json, path);
    out = json.get<T>();
    return CheckRange(field, static_cast<double>(out), path);
  }
}

template <class T>
void ReadField(Reader& reader, ReadObject& object, const Field& field, T& out) {
  if (const Json* json = reader.Next(object, field)) {
    object.status = reader.Read(*json, field, object.child, out);
  }
}

/// `json`, whose places `document` knows.
template <SpecStruct T>
Result<T> ReadSpec(const Json& json, const Document& document) {
  T spec{};
  WEFT_RETURN_IF_ERROR(Reader(document).ReadStruct(json, "", spec));
  return spec;
}

template <SpecStruct T>
void Describe(const std::string& prefix, std::vector<FieldReference>& out) {
  const T defaults{};
  T::Fields(defaults, [&]<class M>(const Field& field, const M& member) {
    std::string path = prefix + std::string(field.name);
    if constexpr (SpecStruct<M>) {
      Describe<M>(path + ".", out);
    } else {
      FieldReference row{path,
                         TypeName<M>(),
                         "",
                         std::string(field.unit),
                         LegalText(field),
                         std::string(field.doc)};
      if constexpr (kIsOptional<M>) {
        row.default_value = "none";
      } else {
        row.default_value = field.required ? "required" : ValueToJson(member).dump();
      }
      out.push_back(std::move(row));
      if constexpr (kIsVector<M>) {
        if constexpr (SpecStruct<typename M::value_type>) {
          Describe<typename M::value_type>(path + "[].", out);
        }
      }
    }
  });
}

}  // namespace internal

template <SpecStruct T>
Json ToJson(const T& spec) {
  Json object = Json::object();
  T::Fields(spec, [&](const Field& field, const auto& member) {
    internal::WriteField(object, field, member);
  });
  return object;
}

template <SpecStruct T>
Result<T> FromJson(const Document& document) {
  return internal::ReadSpec<T>(document.value, document);
}

template <SpecStruct T>
Result<T> FromJson(const Json& json) {
  return internal::ReadSpec<T>(json, Document());
}

template <SpecStruct T>
std::vector<FieldReference> DescribeFields() {
  std::vector<FieldReference> rows;
  internal::Describe<T>("", rows);
  return rows;
}

}  // namespace weft
