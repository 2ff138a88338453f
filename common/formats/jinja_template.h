#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/formats/jinja_syntax.h"
#include "common/formats/jinja_value.h"
#include "common/status.h"

namespace weft::jinja {

/// Bounds of a render, and what its functions see of the world.
struct RenderOptions {
  int64_t steps = 20'000'000;  ///< Statements and expressions, more for long texts and lists.
  std::tm now = {};            ///< For strftime_now.
};

/// What a template printed.
struct Rendered {
  std::string text;
  /// First byte and end of what was printed within {% generation %}, in order.
  std::vector<std::pair<size_t, size_t>> generation;
};

/// A template in the subset of Jinja that chat templates use, set up as transformers does: white
/// space goes with trim_blocks and lstrip_blocks, {% break %}, {% continue %} and {% generation %}
/// exist, lists and mappings cannot be changed, and so do the functions raise_exception and
/// strftime_now and the filter tojson. Not there: inheritance, includes, imports, {% call %},
/// recursive loops, `*` before arguments. Immutable, so thread-safe.
class Template {
 public:
  /// kInvalid, with the line: what cannot be parsed, or is not supported.
  static Result<Template> Parse(std::string_view source);

  /// kInvalid, with the line: an error of the template on these variables, raise_exception, or a
  /// bound that is passed.
  Result<Rendered> Render(const std::vector<std::pair<std::string, Value>>& variables,
                          const RenderOptions& options = {}) const;

  /// It has {% generation %}.
  bool marks_generation() const { return marks_generation_; }

 private:
  Template() = default;

  std::shared_ptr<const Body> body_;
  bool marks_generation_ = false;
};

}  // namespace weft::jinja
