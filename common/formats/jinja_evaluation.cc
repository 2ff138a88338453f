// The expressions of a template.
#include <algorithm>
#include <utility>

#include "common/formats/jinja_interpreter.h"
#include "common/text.h"

namespace weft::jinja {
namespace {

using Kind = Expression::Kind;

/// Steps that it takes to make a value.
size_t CostOf(const Value& value) {
  return value.is_string() ? value.text().size() / 64 : value.nodes() / 4;
}

Result<std::optional<int64_t>> Bound(const Value& value) {
  if (value.is_none()) return std::optional<int64_t>();
  if (value.is_integral()) return std::optional<int64_t>(value.integer());
  return InvalidError("a bound of a slice is of type " + std::string(value.TypeName()) +
                      ", not int");
}

Result<bool> CompareOnce(const std::string& op, const Value& a, const Value& b) {
  if (op == "==") return Equal(a, b);
  if (op == "!=") return !Equal(a, b);
  if (op == "<") return Less(a, b);
  if (op == ">") return Less(b, a);
  if (op == "in") return Contains(b, a);
  WEFT_ASSIGN_OR_RETURN(const bool inverse, op == "<="   ? Less(b, a)
                                            : op == ">=" ? Less(a, b)
                                                         : Contains(b, a));
  return !inverse;
}

}  // namespace

Result<Value> Interpreter::Evaluate(const Expression& expression, Scope& scope) {
  if (depth_ >= kDeepest) return Located(TooDeep(), expression.line);
  ++depth_;
  Result<Value> value = EvaluateInner(expression, scope);
  --depth_;
  Status status = value.status();
  if (status.ok()) {
    const bool made = expression.kind >= Kind::kSlice;
    status = runtime_.Spend(made ? 1 + CostOf(*value) : 1);
  }
  if (!status.ok()) return Located(status, expression.line);
  return value;
}

Result<Value> Interpreter::EvaluateInner(const Expression& expression, Scope& scope) {
  const auto& operands = expression.operands;
  switch (expression.kind) {
    case Kind::kConstant:
      return expression.constant;
    case Kind::kName:
      return EvaluateName(expression, scope);
    case Kind::kAttribute: {
      if (const Loop* loop = LoopNamed(*operands[0], scope)) {
        return LoopAttribute(*loop, expression.name);
      }
      WEFT_ASSIGN_OR_RETURN(const Value self, Evaluate(*operands[0], scope));
      return AttributeOf(self, expression.name);
    }
    case Kind::kItem: {
      WEFT_ASSIGN_OR_RETURN(const Value self, Evaluate(*operands[0], scope));
      WEFT_ASSIGN_OR_RETURN(const Value key, Evaluate(*operands[1], scope));
      return ItemOf(self, key);
    }
    case Kind::kSlice:
      return EvaluateSlice(expression, scope);
    case Kind::kCall:
      return EvaluateCall(expression, scope);
    case Kind::kFilter: {
      Value input;
      if (operands[0] != nullptr) {
        WEFT_ASSIGN_OR_RETURN(input, Evaluate(*operands[0], scope));
      } else {
        input = *input_;
      }
      WEFT_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression, scope));
      return ApplyFilter(expression.name, input, arguments, runtime_);
    }
    case Kind::kTest: {
      WEFT_ASSIGN_OR_RETURN(const Value input, Evaluate(*operands[0], scope));
      WEFT_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression, scope));
      WEFT_ASSIGN_OR_RETURN(const bool holds, ApplyTest(expression.name, input, arguments));
      return Value::Boolean(holds);
    }
    case Kind::kNot: {
      WEFT_ASSIGN_OR_RETURN(const bool holds, Holds(*operands[0], scope));
      return Value::Boolean(!holds);
    }
    case Kind::kNegative:
    case Kind::kPositive: {
      WEFT_ASSIGN_OR_RETURN(const Value value, Evaluate(*operands[0], scope));
      if (!value.is_number()) {
        return InvalidError("a sign before a value of type " + std::string(value.TypeName()));
      }
      if (!value.is_integral()) {
        return Value::Float(expression.kind == Kind::kNegative ? -value.number() : value.number());
      }
      return ApplyOperator(expression.kind == Kind::kNegative ? "-" : "+", Value::Integer(0),
                           value);
    }
    case Kind::kAnd:
    case Kind::kOr: {
      WEFT_ASSIGN_OR_RETURN(Value left, Evaluate(*operands[0], scope));
      if (left.Truthy() == (expression.kind == Kind::kOr)) return left;
      return Evaluate(*operands[1], scope);
    }
    case Kind::kBinary: {
      WEFT_ASSIGN_OR_RETURN(const Value left, Evaluate(*operands[0], scope));
      WEFT_ASSIGN_OR_RETURN(const Value right, Evaluate(*operands[1], scope));
      return ApplyOperator(expression.name, left, right);
    }
    case Kind::kConcatenate:
      return EvaluateConcatenation(expression, scope);
    case Kind::kCompare:
      return EvaluateCompare(expression, scope);
    case Kind::kConditional: {
      WEFT_ASSIGN_OR_RETURN(const bool holds, Holds(*operands[1], scope));
      if (holds) return Evaluate(*operands[0], scope);
      if (operands[2] != nullptr) return Evaluate(*operands[2], scope);
      return Value::Undefined("the value of an 'if' without 'else'");
    }
    case Kind::kList:
    case Kind::kTuple: {
      WEFT_ASSIGN_OR_RETURN(std::vector<Value> items, EvaluateAll(expression, 0, scope));
      return Value::Of(std::move(items), expression.kind == Kind::kTuple);
    }
    case Kind::kMapping:
      return EvaluateMapping(expression, scope);
  }
  return Value();
}

Result<bool> Interpreter::Holds(const Expression& condition, Scope& scope) {
  WEFT_ASSIGN_OR_RETURN(const Value value, Evaluate(condition, scope));
  return value.Truthy();
}

Result<std::vector<Value>> Interpreter::EvaluateAll(const Expression& expression, size_t first,
                                                    Scope& scope) {
  std::vector<Value> values;
  for (size_t i = first; i < expression.operands.size(); ++i) {
    WEFT_ASSIGN_OR_RETURN(Value value, Evaluate(*expression.operands[i], scope));
    values.push_back(std::move(value));
  }
  return values;
}

Result<Arguments> Interpreter::EvaluateArguments(const Expression& call, Scope& scope) {
  Arguments arguments;
  WEFT_ASSIGN_OR_RETURN(arguments.positional, EvaluateAll(call, 1, scope));
  for (const auto& [name, expression] : call.keywords) {
    WEFT_ASSIGN_OR_RETURN(Value value, Evaluate(*expression, scope));
    arguments.keywords.emplace_back(name, std::move(value));
  }
  return arguments;
}

Result<Value> Interpreter::EvaluateName(const Expression& expression, const Scope& scope) {
  if (const Value* value = scope.Find(expression.name)) return *value;
  if (LoopNamed(expression, scope) != nullptr) {
    return InvalidError("'loop' has attributes but is no value; hint: loop.index");
  }
  if (IsGlobal(expression.name)) return Value::Of(Function{.name = expression.name});
  return Value::Undefined("'" + ClipText(expression.name) + "'");
}

Result<Value> Interpreter::EvaluateSlice(const Expression& expression, Scope& scope) {
  WEFT_ASSIGN_OR_RETURN(const Value self, Evaluate(*expression.operands[0], scope));
  std::optional<int64_t> bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    const ExpressionPtr& bound = expression.operands[i + 1];
    if (bound == nullptr) continue;
    WEFT_ASSIGN_OR_RETURN(const Value value, Evaluate(*bound, scope));
    WEFT_ASSIGN_OR_RETURN(bounds[i], Bound(value));
  }
  return SliceOf(self, bounds[0], bounds[1], bounds[2]);
}

Result<Value> Interpreter::EvaluateCompare(const Expression& expression, Scope& scope) {
  WEFT_ASSIGN_OR_RETURN(Value left, Evaluate(*expression.operands[0], scope));
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    WEFT_ASSIGN_OR_RETURN(Value right, Evaluate(*expression.operands[i + 1], scope));
    WEFT_RETURN_IF_ERROR(runtime_.Spend(CostOf(left) + CostOf(right)));
    WEFT_ASSIGN_OR_RETURN(const bool holds, CompareOnce(expression.operators[i], left, right));
    if (!holds) return Value::Boolean(false);
    left = std::move(right);
  }
  return Value::Boolean(true);
}

Result<Value> Interpreter::EvaluateConcatenation(const Expression& expression, Scope& scope) {
  std::string result;
  for (const ExpressionPtr& operand : expression.operands) {
    WEFT_ASSIGN_OR_RETURN(const Value value, Evaluate(*operand, scope));
    WEFT_ASSIGN_OR_RETURN(const std::string text, ToText(value));
    result += text;
    WEFT_RETURN_IF_ERROR(CheckTextSize(result.size()));
  }
  return Value::String(std::move(result));
}

Result<Value> Interpreter::EvaluateMapping(const Expression& expression, Scope& scope) {
  std::vector<std::pair<std::string, Value>> entries;
  for (size_t i = 0; i < expression.operands.size(); i += 2) {
    WEFT_ASSIGN_OR_RETURN(const Value key, Evaluate(*expression.operands[i], scope));
    WEFT_ASSIGN_OR_RETURN(Value value, Evaluate(*expression.operands[i + 1], scope));
    if (!key.is_string()) {
      return InvalidError("a key of a mapping is of type " + std::string(key.TypeName()) +
                          "; only strings are supported");
    }
    entries.emplace_back(key.text(), std::move(value));
  }
  return Value::Of(std::move(entries));
}

Result<Value> Interpreter::EvaluateCall(const Expression& expression, Scope& scope) {
  const Expression& callee = *expression.operands[0];
  if (callee.kind != Kind::kAttribute) {
    WEFT_ASSIGN_OR_RETURN(const Value function, Evaluate(callee, scope));
    WEFT_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression, scope));
    return Call(function, arguments);
  }
  if (Loop* loop = LoopNamed(*callee.operands[0], scope)) {
    WEFT_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression, scope));
    return CallLoop(*loop, callee.name, arguments);
  }
  WEFT_ASSIGN_OR_RETURN(const Value self, Evaluate(*callee.operands[0], scope));
  WEFT_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression, scope));
  if (self.kind() == Value::Kind::kNamespace) {
    WEFT_ASSIGN_OR_RETURN(const Value function, AttributeOf(self, callee.name));
    return Call(function, arguments);
  }
  return CallMethod(self, callee.name, arguments);
}

Result<Value> Interpreter::Call(const Value& callee, const Arguments& arguments) {
  if (callee.is_undefined()) return InvalidError(callee.missing() + " is undefined");
  if (callee.kind() != Value::Kind::kFunction) {
    return InvalidError("a value of type " + std::string(callee.TypeName()) +
                        " is called as if it were a function");
  }
  const Function& function = callee.function();
  if (function.macro != nullptr) return CallMacro(*function.macro, arguments);
  return CallGlobal(function.name, arguments, runtime_);
}

Result<Value> Interpreter::CallMacro(const Macro& macro, const Arguments& arguments) {
  const std::vector<std::string>& parameters = macro.parameters;
  if (arguments.positional.size() > parameters.size()) {
    return InvalidError("the macro '" + macro.name + "' takes at most " +
                        std::to_string(parameters.size()) + " arguments");
  }
  Scope scope{.parent = &top_};
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    scope.Set(parameters[i], arguments.positional[i]);
  }
  for (const auto& [name, value] : arguments.keywords) {
    const auto found = std::find(parameters.begin(), parameters.end(), name);
    if (found == parameters.end()) {
      return InvalidError("the macro '" + macro.name + "' has no parameter '" + name + "'");
    }
    if (found - parameters.begin() < static_cast<ptrdiff_t>(arguments.positional.size())) {
      return InvalidError("the macro '" + macro.name + "' got '" + name + "' twice");
    }
    scope.Set(*found, value);
  }
  const size_t required = parameters.size() - macro.defaults.size();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& names = scope.names;
    if (std::any_of(names.begin(), names.end(),
                    [&](const auto& entry) { return entry.first == parameters[i]; })) {
      continue;
    }
    Value value = Value::Undefined("the parameter '" + parameters[i] + "'");
    if (i >= required) {
      WEFT_ASSIGN_OR_RETURN(value, Evaluate(*macro.defaults[i - required], scope));
    }
    scope.Set(parameters[i], std::move(value));
  }
  WEFT_ASSIGN_OR_RETURN(std::string text, Capture(macro.body, scope));
  return Value::String(std::move(text));
}

Result<Value> Interpreter::FilterBlock(const Expression& expression, const Value& input,
                                       Scope& scope) {
  const Value* const outer = std::exchange(input_, &input);
  Result<Value> result = Evaluate(expression, scope);
  input_ = outer;
  return result;
}

Interpreter::Loop* Interpreter::LoopNamed(const Expression& expression, const Scope& scope) {
  if (expression.kind != Kind::kName || expression.name != "loop") return nullptr;
  for (const Scope* at = &scope; at != nullptr; at = at->parent) {
    for (const auto& [name, value] : at->names) {
      if (name == "loop") return nullptr;
    }
    if (at->loop != nullptr) return at->loop;
  }
  return nullptr;
}

Result<Value> Interpreter::LoopAttribute(const Loop& loop, const std::string& name) {
  const auto index = static_cast<int64_t>(loop.index);
  const auto count = static_cast<int64_t>(loop.items.size());
  if (name == "index") return Value::Integer(index + 1);
  if (name == "index0") return Value::Integer(index);
  if (name == "revindex") return Value::Integer(count - index);
  if (name == "revindex0") return Value::Integer(count - index - 1);
  if (name == "first") return Value::Boolean(index == 0);
  if (name == "last") return Value::Boolean(index + 1 == count);
  if (name == "length") return Value::Integer(count);
  if (name == "depth") return Value::Integer(1);
  if (name == "depth0") return Value::Integer(0);
  if (name == "previtem") {
    return index > 0 ? loop.items[loop.index - 1] : Value::Undefined("the item before the first");
  }
  if (name == "nextitem") {
    return index + 1 < count ? loop.items[loop.index + 1]
                             : Value::Undefined("the item after the last");
  }
  return InvalidError("'loop' has no attribute '" + ClipText(name) + "'");
}

Result<Value> Interpreter::CallLoop(Loop& loop, const std::string& name,
                                    const Arguments& arguments) {
  const std::vector<Value>& values = arguments.positional;
  if (name == "cycle" && !values.empty()) return values[loop.index % values.size()];
  if (name == "changed") {
    const bool same = loop.last_seen.has_value() &&
                      std::equal(values.begin(), values.end(), loop.last_seen->begin(),
                                 loop.last_seen->end(), Equal);
    loop.last_seen = values;
    return Value::Boolean(!same);
  }
  return InvalidError("'loop' has no method '" + ClipText(name) + "' of these arguments");
}

}  // namespace weft::jinja
