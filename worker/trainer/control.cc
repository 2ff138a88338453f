#include "worker/trainer/control.h"

#include <array>

#include "common/json.h"
#include "common/spec/spec_json.h"

namespace weft::trainer {
namespace {

constexpr std::array kStatusCodes = {
    StatusCode::kInvalid,     StatusCode::kNotFound,  StatusCode::kConflict,
    StatusCode::kUnavailable, StatusCode::kExhausted, StatusCode::kAborted,
    StatusCode::kCorrupt,     StatusCode::kInternal,  StatusCode::kDenied};

template <class Variant>
std::string LineOf(const Variant& message) {
  return std::visit(
      [](const auto& body) {
        Json object;
        object[std::string(body.kName)] = ToJson(body);
        return object.dump(-1, ' ', false, Json::error_handler_t::replace);
      },
      message);
}

/// Tries the alternatives from `I` on.
template <class Variant, size_t I = 0>
Result<Variant> ReadBody(const std::string& name, const Json& body) {
  if constexpr (I == std::variant_size_v<Variant>) {
    return InvalidError("unknown control message '" + name + "'");
  } else {
    using Message = std::variant_alternative_t<I, Variant>;
    if (name != Message::kName) return ReadBody<Variant, I + 1>(name, body);
    Result<Message> message = FromJson<Message>(body);
    if (!message.ok()) return message.status().WithContext("control message '" + name + "'");
    return Variant(*std::move(message));
  }
}

template <class Variant>
Result<Variant> Parse(std::string_view line) {
  Result<Json> object = ParseJson(line);
  if (!object.ok()) return object.status().WithContext("control message");
  if (!object->is_object() || object->size() != 1) {
    return InvalidError("a control message is an object with one key, not " + object->dump());
  }
  return ReadBody<Variant>(object->begin().key(), object->begin().value());
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

std::string ToLine(const RankMessage& message) {
  return LineOf(message);
}
std::string ToLine(const DaemonMessage& message) {
  return LineOf(message);
}
Result<RankMessage> ParseRankMessage(std::string_view line) {
  return Parse<RankMessage>(line);
}
Result<DaemonMessage> ParseDaemonMessage(std::string_view line) {
  return Parse<DaemonMessage>(line);
}

Status ToStatus(const FailedMessage& message) {
  const FailureKind kind = message.numerics            ? FailureKind::kDiverged
                           : message.silent_corruption ? FailureKind::kSilentCorruption
                           : message.disk_full         ? FailureKind::kDiskFull
                                                       : FailureKind::kOther;
  for (StatusCode code : kStatusCodes) {
    if (StatusCodeName(code) == message.code) return {code, message.message, kind};
  }
  return {StatusCode::kInternal, message.message, kind};
}

FailedMessage ToFailed(const Status& status) {
  return {.code = std::string(StatusCodeName(status.code())),
          .message = status.message(),
          .numerics = status.kind() == FailureKind::kDiverged,
          .silent_corruption = status.kind() == FailureKind::kSilentCorruption,
          .disk_full = status.kind() == FailureKind::kDiskFull};
}

std::string ToHex(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(bytes.size() * 2);
  for (char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

Result<std::string> FromHex(std::string_view hex) {
  if (hex.size() % 2 != 0) return InvalidError("hexadecimal text of odd length");
  std::string bytes;
  bytes.reserve(hex.size() / 2);
  for (size_t i = 0; i < hex.size(); i += 2) {
    const int high = HexDigit(hex[i]);
    const int low = HexDigit(hex[i + 1]);
    if (high < 0 || low < 0) {
      return InvalidError("'" + std::string(hex.substr(i, 2)) + "' is not a hexadecimal byte");
    }
    bytes += static_cast<char>(high << 4 | low);
  }
  return bytes;
}

}  // namespace weft::trainer
