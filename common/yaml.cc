#include "common/yaml.h"

#include <yaml-cpp/yaml.h>

#include <charconv>
#include <cmath>

namespace weft {
namespace {

constexpr size_t kMaxBytes = size_t{4} << 20;
constexpr int kMaxDepth = 32;
constexpr int kMaxNodes = 1'000'000;

template <class T>
bool ParseWhole(std::string_view text, T& value) {
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

Json ScalarValue(const YAML::Node& node) {
  const std::string& text = node.Scalar();
  if (node.Tag() == "!") return text;  // quoted
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
    if (++nodes_ > kMaxNodes) {
      return InvalidError(document_.source + " expands to more than a million values");
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
                                ": " + child_path + " is given twice");
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
  int nodes_ = 0;
};

/// A string that ScalarValue would read as something else needs quotes.
bool NeedsQuotes(const std::string& text) {
  YAML::Node probe(text);
  return !ScalarValue(probe).is_string();
}

void Emit(const Json& value, YAML::Emitter& out) {
  switch (value.type()) {
    case Json::value_t::object:
      out << YAML::BeginMap;
      for (const auto& [key, child] : value.items()) {
        out << YAML::Key << key << YAML::Value;
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
    default:
      out << value.dump();
      break;
  }
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
  Document document;
  document.source = source;
  try {
    std::vector<YAML::Node> documents = YAML::LoadAll(std::string(text));
    if (documents.size() != 1) {
      return InvalidError(source + " holds " + std::to_string(documents.size()) +
                          " YAML documents; exactly one is expected");
    }
    WEFT_RETURN_IF_ERROR(Converter(document).Convert(documents[0], "", 0, document.value));
  } catch (const YAML::Exception& e) {
    return InvalidError(source + ":" + std::to_string(e.mark.line + 1) + ":" +
                        std::to_string(e.mark.column + 1) + ": not valid YAML: " + e.msg);
  }
  return document;
}

std::string ToYaml(const Json& value) {
  YAML::Emitter out;
  Emit(value, out);
  return std::string(out.c_str()) + "\n";
}

}  // namespace weft
