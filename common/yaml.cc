#include "common/yaml.h"

#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <charconv>
#include <cmath>
#include <sstream>

#include "common/formats/utf8.h"
#include "common/json_scan.h"
#include "common/text.h"

namespace weft {
namespace {

constexpr size_t kMaxBytes = size_t{4} << 20;
constexpr int kMaxDepth = 32;
// Aliases share one node in the parser's tree but are copied into the value: what the expanded
// value may hold is bounded, whatever the text's size.
constexpr size_t kMaxExpandedBytes = size_t{32} << 20;
constexpr size_t kBytesPerNode = 64;  ///< Charged for each value besides its text and path.

template <class T>
bool ParseWhole(std::string_view text, T& value) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

Json ScalarValue(const YAML::Node& node) {
  const std::string& text = node.Scalar();
  if (node.Tag() == "!" || node.Tag() == "tag:yaml.org,2002:str") return text;  // quoted, !!str
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return {};
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  std::string digits;  // 1_000_000 is a common way to write a large number
  for (size_t i = 0; i < text.size(); ++i) {
    bool between = i > 0 && i + 1 < text.size() &&
                   std::isdigit(static_cast<unsigned char>(text[i - 1])) != 0 &&
                   std::isdigit(static_cast<unsigned char>(text[i + 1])) != 0;
    if (text[i] == '_' && between) continue;
    digits += text[i];
  }
  int64_t integer = 0;
  if (ParseWhole(digits, integer)) return integer;
  double real = 0;
  bool numeric = digits.find_first_not_of("+-.0123456789eE") == std::string::npos;
  if (numeric && ParseWhole(digits, real) && std::isfinite(real)) return real;
  return text;
}

class Converter {
 public:
  explicit Converter(Document& document) : document_(document) {}

  Status Convert(const YAML::Node& node, const std::string& path, int depth, Json& out) {
    if (node.Mark().line >= 0) document_.lines.emplace(path, node.Mark().line + 1);
    if (depth > kMaxDepth) {
      return InvalidError(document_.Locate(path) + " is nested deeper than " +
                          std::to_string(kMaxDepth) + " levels");
    }
    // Charged before the copy is made; only scalars have text.
    expanded_bytes_ +=
        kBytesPerNode + path.size() + (node.IsScalar() ? node.Scalar().size() : size_t{0});
    if (expanded_bytes_ > kMaxExpandedBytes) {
      return InvalidError(document_.source + " expands to more than " +
                          std::to_string(kMaxExpandedBytes >> 20) +
                          " MiB of values; hint: are aliases (*name) nested?");
    }
    switch (node.Type()) {
      case YAML::NodeType::Undefined:
      case YAML::NodeType::Null:
        out = nullptr;
        return OkStatus();
      case YAML::NodeType::Scalar:
        out = ScalarValue(node);
        return OkStatus();
      case YAML::NodeType::Sequence: {
        out = Json::array();
        size_t index = 0;
        for (const YAML::Node& child : node) {
          Json value;
          WEFT_RETURN_IF_ERROR(
              Convert(child, path + "[" + std::to_string(index++) + "]", depth + 1, value));
          out.push_back(std::move(value));
        }
        return OkStatus();
      }
      case YAML::NodeType::Map: {
        out = Json::object();
        for (const auto& entry : node) {
          const YAML::Node &key = entry.first, &child = entry.second;
          if (!key.IsScalar()) {
            return InvalidError(document_.Locate(path) + " has a key that is not a string");
          }
          std::string child_path = path.empty() ? key.Scalar() : path + "." + key.Scalar();
          if (out.contains(key.Scalar())) {
            return InvalidError(document_.source + ":" + std::to_string(key.Mark().line + 1) +
                                ": " + ClipText(child_path) + " is given twice");
          }
          document_.lines.emplace(child_path, key.Mark().line + 1);
          WEFT_RETURN_IF_ERROR(Convert(child, child_path, depth + 1, out[key.Scalar()]));
        }
        return OkStatus();
      }
    }
    return OkStatus();
  }

 private:
  Document& document_;
  size_t expanded_bytes_ = 0;
};

/// Parses without building anything.
struct IgnoreEvents : YAML::EventHandler {
  using Style = YAML::EmitterStyle::value;
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, Style) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, Style) override {}
  void OnMapEnd() override {}
};

/// The parser guards its own recursion, at some hundreds of levels, but calls that a bad file.
std::string Reason(const YAML::Exception& e) {
  if (dynamic_cast<const YAML::DeepRecursion*>(&e) != nullptr) {
    return "nested deeper than " + std::to_string(kMaxDepth) + " levels";
  }
  return e.msg;
}

/// YAML 1.2 is nearly a superset of JSON; what the parser lacks are tabs and escaped surrogate
/// pairs.
Result<Document> ParseAsJson(std::string_view text, const std::string& source) {
  size_t start = text.find_first_not_of(" \t\r\n");
  if (start == std::string_view::npos || text[start] != '{') {
    return InvalidError(source + " is not JSON");
  }
  JsonLimits limits;
  limits.depth = kMaxDepth;
  WEFT_ASSIGN_OR_RETURN(Json value, ParseJson(text, limits));
  return Document{std::move(value), source, JsonLines(text, kMaxDepth)};
}

/// Whether a plain scalar of this text might be read as anything but this string.
bool NeedsQuotes(const std::string& text) {
  constexpr std::string_view kStart =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_/.";
  bool plain = !text.empty() && kStart.find(text[0]) != std::string_view::npos &&
               text.find_first_not_of(std::string(kStart) + "-+") == std::string::npos;
  return !plain || !ScalarValue(YAML::Node(text)).is_string();
}

void Emit(const Json& value, YAML::Emitter& out) {
  switch (value.type()) {
    case Json::value_t::object:
      out << YAML::BeginMap;
      for (const auto& [key, child] : value.items()) {
        out << YAML::Key;
        if (NeedsQuotes(key)) out << YAML::DoubleQuoted;
        out << key << YAML::Value;
        Emit(child, out);
      }
      out << YAML::EndMap;
      break;
    case Json::value_t::array:
      out << YAML::BeginSeq;
      for (const Json& child : value) Emit(child, out);
      out << YAML::EndSeq;
      break;
    case Json::value_t::string: {
      const auto& text = value.get_ref<const std::string&>();
      if (NeedsQuotes(text)) out << YAML::DoubleQuoted;
      out << text;
      break;
    }
    case Json::value_t::null:
      out << YAML::Null;
      break;
    default:
      out << value.dump();
      break;
  }
}

/// kInvalid names the line of the first byte that is not UTF-8.
Status CheckUtf8(std::string_view text, const std::string& source) {
  for (size_t at = 0, line = 1; at < text.size();) {
    const Utf8Char c = ReadUtf8(text, at);
    if (!c.valid) {
      return InvalidError(source + ":" + std::to_string(line) +
                          ": bytes that are not UTF-8; hint: save the file as UTF-8");
    }
    if (c.code == '\n') ++line;
    at += static_cast<size_t>(c.bytes);
  }
  return OkStatus();
}

}  // namespace

Result<Document> ParseYaml(std::string_view text, const std::string& source) {
  if (text.size() > kMaxBytes) {
    return InvalidError(source + " has " + std::to_string(text.size()) + " bytes; at most " +
                        std::to_string(kMaxBytes) + " are accepted");
  }
  if (text.find('\0') != std::string_view::npos) {
    return InvalidError(source + " holds binary data, not YAML or JSON");
  }
  WEFT_RETURN_IF_ERROR(CheckUtf8(text, source));
  Document document;
  document.source = source;
  try {
    // Not LoadAll, which on a stray comma reads empty documents until memory runs out.
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    IgnoreEvents ignore;
    if (!parser.HandleNextDocument(ignore)) return InvalidError(source + " is empty");
    if (parser.HandleNextDocument(ignore)) {
      return InvalidError(source + " holds more than one YAML document");
    }
    WEFT_RETURN_IF_ERROR(
        Converter(document).Convert(YAML::Load(std::string(text)), "", 0, document.value));
  } catch (const YAML::Exception& e) {
    if (Result<Document> json = ParseAsJson(text, source); json.ok()) return json;
    return InvalidError(source + ":" + std::to_string(e.mark.line + 1) + ":" +
                        std::to_string(e.mark.column + 1) + ": not valid YAML: " + Reason(e));
  }
  return document;
}

std::string ToYaml(const Json& value) {
  YAML::Emitter out;
  Emit(value, out);
  return std::string(out.c_str()) + "\n";
}

}  // namespace weft
