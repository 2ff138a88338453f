#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/spec/field.h"
#include "common/status.h"

namespace weft {

using Json = nlohmann::json;
struct Document;

/// JSON of a spec, every field written. Absent optionals are left out.
template <SpecStruct T>
Json ToJson(const T& spec);

/// Reads a spec strictly: an unknown field, a wrong type, an illegal value or a missing required
/// field gives one kInvalid error with file, line and field path, what was expected, and the
/// nearest legal name. Absent fields keep their default.
template <SpecStruct T>
Result<T> FromJson(const Document& document);

namespace internal {

class Reader;
struct ReadObject;

template <class T>
void WriteField(Json& object, const Field& field, const T& value);
template <class T>
void ReadField(Reader& reader, ReadObject& object, const Field& field, T& out);

}  // namespace internal
}  // namespace weft

// Specs have hundreds of fields, and many sources read and write the same large ones: what turns
// these into JSON and back is compiled in compiled_json.cc alone. WEFT_SPEC_JSON(extern, T) says so
// after the struct T, WEFT_FIELD_JSON(extern, T) of any type of a field.
#define WEFT_FIELD_JSON(how, T)                                          \
  how template void internal::WriteField(Json&, const Field&, const T&); \
  how template void internal::ReadField(internal::Reader&, internal::ReadObject&, const Field&, T&)
#define WEFT_SPEC_JSON(how, T)                         \
  how template Json ToJson(const T&);                  \
  how template Result<T> FromJson<T>(const Document&); \
  WEFT_FIELD_JSON(how, T)

namespace weft {

WEFT_FIELD_JSON(extern, bool);
WEFT_FIELD_JSON(extern, int64_t);
WEFT_FIELD_JSON(extern, double);
WEFT_FIELD_JSON(extern, std::string);
WEFT_FIELD_JSON(extern, std::vector<int64_t>);
WEFT_FIELD_JSON(extern, std::vector<double>);
WEFT_FIELD_JSON(extern, std::vector<std::string>);
WEFT_FIELD_JSON(extern, std::optional<bool>);
WEFT_FIELD_JSON(extern, std::optional<int64_t>);
WEFT_FIELD_JSON(extern, std::optional<double>);
WEFT_FIELD_JSON(extern, std::optional<std::string>);

}  // namespace weft
