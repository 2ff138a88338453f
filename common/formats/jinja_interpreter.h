#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/formats/jinja_builtins.h"
#include "common/formats/jinja_syntax.h"
#include "common/formats/jinja_template.h"
#include "common/status.h"

namespace weft::jinja {

/// Runs one template once.
class Interpreter {
 public:
  explicit Interpreter(const RenderOptions& options);

  /// Variables that the template sees; they outlive the interpreter.
  void Define(std::string_view name, const Value& value);

  Result<Rendered> Run(const Body& body);

 private:
  /// A loop that is running.
  struct Loop {
    const std::vector<Value>& items;
    size_t index = 0;
    std::optional<std::vector<Value>> last_seen = {};  ///< By loop.changed().
  };

  /// Names of a loop, a macro or a block; those of the template have no parent.
  struct Scope {
    Scope* parent = nullptr;
    Loop* loop = nullptr;
    std::vector<std::pair<std::string_view, Value>> names = {};

    void Set(std::string_view name, Value value);
    const Value* Find(std::string_view name) const;
  };

  enum class Flow : uint8_t { kNext, kBreak, kContinue };

  /// Statements and evaluations within each other: what the stack holds for sure.
  static constexpr int kDeepest = 1000;

  // Statements (jinja_interpreter.cc).
  Result<Flow> Execute(const Body& body, Scope& scope);
  Result<Flow> Execute(const Statement& statement, Scope& scope);
  Result<Flow> ExecuteIf(const Statement& statement, Scope& scope);
  Result<Flow> ExecuteFor(const Statement& statement, Scope& scope);
  Status ExecuteBlock(const Statement& statement, Scope& scope);
  Result<Flow> ExecuteGeneration(const Statement& statement, Scope& scope);
  Status Assign(const Expression& target, const Value& value, Scope& scope);
  Status AssignAll(const Expression& tuple, const Value& value, Scope& scope);
  Status Print(std::string_view text);
  /// What the body prints.
  Result<std::string> Capture(const Body& body, Scope& scope);
  /// The error with the line, unless it has one already.
  Status Located(const Status& status, int line);
  static Status TooDeep();

  // Expressions (jinja_evaluation.cc).
  Result<Value> Evaluate(const Expression& expression, Scope& scope);
  Result<Value> EvaluateInner(const Expression& expression, Scope& scope);
  Result<bool> Holds(const Expression& condition, Scope& scope);
  Result<std::vector<Value>> EvaluateAll(const Expression& expression, size_t first, Scope& scope);
  Result<Arguments> EvaluateArguments(const Expression& call, Scope& scope);
  Result<Value> EvaluateName(const Expression& expression, const Scope& scope);
  Result<Value> EvaluateSlice(const Expression& expression, Scope& scope);
  Result<Value> EvaluateCompare(const Expression& expression, Scope& scope);
  Result<Value> EvaluateConcatenation(const Expression& expression, Scope& scope);
  Result<Value> EvaluateMapping(const Expression& expression, Scope& scope);
  Result<Value> EvaluateCall(const Expression& expression, Scope& scope);
  Result<Value> Call(const Value& callee, const Arguments& arguments);
  Result<Value> CallMacro(const Macro& macro, const Arguments& arguments);
  /// Filters of `expression` applied to `input`, which is what a block printed.
  Result<Value> FilterBlock(const Expression& expression, const Value& input, Scope& scope);
  /// The loop that the name `loop` means; null when it is another expression or no loop runs.
  static Loop* LoopNamed(const Expression& expression, const Scope& scope);
  static Result<Value> LoopAttribute(const Loop& loop, const std::string& name);
  static Result<Value> CallLoop(Loop& loop, const std::string& name, const Arguments& arguments);

  Runtime runtime_;
  Scope top_;
  std::string* out_ = nullptr;    ///< Where statements print to.
  int captures_ = 0;              ///< Captures that are running.
  int depth_ = 0;                 ///< Statements and evaluations within each other.
  bool located_ = false;          ///< The error has its line.
  const Value* input_ = nullptr;  ///< Of the filters of a block.
  Rendered rendered_;
};

}  // namespace weft::jinja
