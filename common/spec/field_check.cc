#include "common/spec/field_check.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>

#include "common/text.h"

namespace weft {
namespace {

size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

std::string Hint(const std::string& nearest) {
  return nearest.empty() ? "" : "; did you mean '" + nearest + "'?";
}

}  // namespace

std::string NearestName(const std::string& name, const std::vector<std::string>& known) {
  std::string nearest;
  if (name.size() > 256) return nearest;
  size_t best = std::max<size_t>(name.size() / 2, 2) + 1;
  for (const std::string& candidate : known) {
    size_t distance = EditDistance(name, candidate);
    // "warmup" for "warmup_steps": a part of the name is near whatever its length.
    if (candidate.size() > 3 && name.size() > 3 &&
        (candidate.find(name) != std::string::npos || name.find(candidate) != std::string::npos)) {
      distance = std::min<size_t>(distance, 2);
    }
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

namespace internal {

std::string NumberText(double value) {
  if (std::nearbyint(value) == value && std::fabs(value) < 1e15) {
    return std::to_string(static_cast<int64_t>(value));
  }
  char text[32];
  auto [end, error] = std::to_chars(text, text + sizeof(text), value);
  return std::string(text, end);
}

std::string LegalText(const Field& field) {
  if (!field.choices.empty()) {
    std::string text;
    for (std::string_view choice : field.choices) {
      text += (text.empty() ? "" : " | ") + std::string(choice);
    }
    return text;
  }
  bool low = std::isfinite(field.min), high = std::isfinite(field.max);
  if (low && high) return NumberText(field.min) + " to " + NumberText(field.max);
  if (low) return "at least " + NumberText(field.min);
  if (high) return "at most " + NumberText(field.max);
  return "";
}

bool IsChoice(const Field& field, std::string_view value) {
  return field.choices.empty() ||
         std::find(field.choices.begin(), field.choices.end(), value) != field.choices.end();
}

bool IsInRange(const Field& field, double value) {
  return value >= field.min && value <= field.max;
}

Status ChoiceError(const Field& field, const std::string& value, const std::string& place) {
  const std::vector<std::string> legal(field.choices.begin(), field.choices.end());
  return InvalidError(place + " is '" + ClipText(value) + "', but must be one of " +
                      LegalText(field) + Hint(NearestName(value, legal)));
}

Status RangeError(const Field& field, double value, const std::string& place) {
  std::string legal = LegalText(field);
  if (legal.empty()) {
    legal = "a number";
  } else if (!field.unit.empty()) {
    legal += " " + std::string(field.unit);
  }
  return InvalidError(place + " is " + NumberText(value) + ", but must be " + legal);
}

Status LengthError(const Field& field, size_t length, const char* what, const std::string& place) {
  return InvalidError(place + " has " + std::to_string(length) + " " + what + ", but must have " +
                      LegalText(field));
}

Status MissingError(const Field& field, const std::string& parent, const std::string& path) {
  return InvalidError((parent.empty() ? "" : parent + ": ") + "required field " + path +
                      " is missing: " + std::string(field.doc));
}

}  // namespace internal
}  // namespace weft
