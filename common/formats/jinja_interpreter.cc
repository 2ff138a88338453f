#include "common/formats/jinja_interpreter.h"

#include <algorithm>
#include <utility>

#include "common/formats/jinja_parser.h"
#include "common/text.h"

namespace weft::jinja {
namespace {

using Kind = Statement::Kind;

bool MarksGeneration(const Body& body) {
  return std::any_of(body.begin(), body.end(), [](const StatementPtr& statement) {
    if (statement->kind == Kind::kGeneration || MarksGeneration(statement->body) ||
        MarksGeneration(statement->otherwise)) {
      return true;
    }
    return std::any_of(
        statement->branches.begin(), statement->branches.end(),
        [](const Statement::Branch& branch) { return MarksGeneration(branch.body); });
  });
}

}  // namespace

Result<Template> Template::Parse(std::string_view source) {
  Template parsed;
  WEFT_ASSIGN_OR_RETURN(Body body, ParseTemplate(source));
  parsed.marks_generation_ = MarksGeneration(body);
  parsed.body_ = std::make_shared<const Body>(std::move(body));
  return parsed;
}

Result<Rendered> Template::Render(const std::vector<std::pair<std::string, Value>>& variables,
                                  const RenderOptions& options) const {
  Interpreter interpreter(options);
  for (const auto& [name, value] : variables) interpreter.Define(name, value);
  return interpreter.Run(*body_);
}

Interpreter::Interpreter(const RenderOptions& options) {
  runtime_.steps_left = options.steps;
  runtime_.now = options.now;
}

void Interpreter::Define(std::string_view name, const Value& value) {
  top_.Set(name, value);
}

Result<Rendered> Interpreter::Run(const Body& body) {
  out_ = &rendered_.text;
  WEFT_RETURN_IF_ERROR(Execute(body, top_).status());
  return std::move(rendered_);
}

void Interpreter::Scope::Set(std::string_view name, Value value) {
  for (auto& [known, old] : names) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  names.emplace_back(name, std::move(value));
}

const Value* Interpreter::Scope::Find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent) {
    for (const auto& [known, value] : scope->names) {
      if (known == name) return &value;
    }
  }
  return nullptr;
}

Status Interpreter::Located(const Status& status, int line) {
  if (located_) return status;
  located_ = true;
  return status.WithContext("line " + std::to_string(line));
}

Status Interpreter::Print(std::string_view text) {
  WEFT_RETURN_IF_ERROR(CheckTextSize(out_->size() + text.size()));
  WEFT_RETURN_IF_ERROR(runtime_.Spend(text.size() / 64));
  out_->append(text);
  return OkStatus();
}

Result<std::string> Interpreter::Capture(const Body& body, Scope& scope) {
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  ++captures_;
  const Status status = Execute(body, scope).status();
  --captures_;
  out_ = outer;
  WEFT_RETURN_IF_ERROR(status);
  return text;
}

Result<Interpreter::Flow> Interpreter::Execute(const Body& body, Scope& scope) {
  for (const StatementPtr& statement : body) {
    if (depth_ >= kDeepest) return Located(TooDeep(), statement->line);
    ++depth_;
    Result<Flow> flow = Execute(*statement, scope);
    --depth_;
    if (!flow.ok()) return Located(flow.status(), statement->line);
    if (*flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Status Interpreter::TooDeep() {
  return InvalidError(
      "blocks, expressions and macros nested too deeply; hint: does a macro call itself without "
      "end?");
}

Result<Interpreter::Flow> Interpreter::Execute(const Statement& statement, Scope& scope) {
  WEFT_RETURN_IF_ERROR(runtime_.Spend(1));
  switch (statement.kind) {
    case Kind::kText:
      WEFT_RETURN_IF_ERROR(Print(statement.text));
      return Flow::kNext;
    case Kind::kPrint: {
      WEFT_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.value, scope));
      if (value.is_string()) {
        WEFT_RETURN_IF_ERROR(Print(value.text()));
      } else {
        WEFT_ASSIGN_OR_RETURN(const std::string text, ToText(value));
        WEFT_RETURN_IF_ERROR(Print(text));
      }
      return Flow::kNext;
    }
    case Kind::kIf:
      return ExecuteIf(statement, scope);
    case Kind::kFor:
      return ExecuteFor(statement, scope);
    case Kind::kSet: {
      WEFT_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.value, scope));
      WEFT_RETURN_IF_ERROR(Assign(*statement.target, value, scope));
      return Flow::kNext;
    }
    case Kind::kSetBlock:
    case Kind::kFilterBlock:
      WEFT_RETURN_IF_ERROR(ExecuteBlock(statement, scope));
      return Flow::kNext;
    case Kind::kWith: {
      Scope inner{.parent = &scope};
      for (const auto& [target, expression] : statement.assignments) {
        WEFT_ASSIGN_OR_RETURN(const Value value, Evaluate(*expression, scope));
        inner.Set(target->name, value);
      }
      return Execute(statement.body, inner);
    }
    case Kind::kMacro:
      scope.Set(statement.macro->name,
                Value::Of(Function{statement.macro->name, statement.macro.get()}));
      return Flow::kNext;
    case Kind::kGeneration:
      return ExecuteGeneration(statement, scope);
    case Kind::kBreak:
      return Flow::kBreak;
    case Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::ExecuteIf(const Statement& statement, Scope& scope) {
  for (const Statement::Branch& branch : statement.branches) {
    WEFT_ASSIGN_OR_RETURN(const bool holds, Holds(*branch.condition, scope));
    if (holds) return Execute(branch.body, scope);
  }
  return Execute(statement.otherwise, scope);
}

Result<Interpreter::Flow> Interpreter::ExecuteFor(const Statement& statement, Scope& scope) {
  WEFT_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.value, scope));
  Result<std::vector<Value>> items = ItemsOf(value);
  if (!items.ok()) return items.status();
  WEFT_RETURN_IF_ERROR(runtime_.Spend(items->size()));
  if (statement.condition != nullptr) {
    std::vector<Value> kept;
    for (Value& item : *items) {
      Scope inner{.parent = &scope};
      WEFT_RETURN_IF_ERROR(Assign(*statement.target, item, inner));
      WEFT_ASSIGN_OR_RETURN(const bool holds, Holds(*statement.condition, inner));
      if (holds) kept.push_back(std::move(item));
    }
    *items = std::move(kept);
  }
  if (items->empty()) {
    Scope inner{.parent = &scope};
    return Execute(statement.otherwise, inner);
  }
  for (Loop loop{.items = *items}; loop.index < items->size(); ++loop.index) {
    Scope inner{.parent = &scope, .loop = &loop};
    WEFT_RETURN_IF_ERROR(Assign(*statement.target, (*items)[loop.index], inner));
    WEFT_ASSIGN_OR_RETURN(const Flow flow, Execute(statement.body, inner));
    if (flow == Flow::kBreak) break;
  }
  return Flow::kNext;
}

/// {% set x %} and {% filter f %}: what the body prints goes through filters and then somewhere.
Status Interpreter::ExecuteBlock(const Statement& statement, Scope& scope) {
  Scope inner{.parent = &scope};
  WEFT_ASSIGN_OR_RETURN(std::string text, Capture(statement.body, inner));
  Value value = Value::String(std::move(text));
  if (statement.value != nullptr) {
    WEFT_ASSIGN_OR_RETURN(value, FilterBlock(*statement.value, value, scope));
  }
  if (statement.kind == Kind::kSetBlock) return Assign(*statement.target, value, scope);
  WEFT_ASSIGN_OR_RETURN(const std::string printed, ToText(value));
  return Print(printed);
}

Result<Interpreter::Flow> Interpreter::ExecuteGeneration(const Statement& statement, Scope& scope) {
  if (captures_ > 0) {
    return InvalidError(
        "{% generation %} within a macro or a block that is not printed at once; hint: move it to "
        "where the text is printed");
  }
  Scope inner{.parent = &scope};
  const size_t begin = out_->size();
  WEFT_ASSIGN_OR_RETURN(const Flow flow, Execute(statement.body, inner));
  rendered_.generation.emplace_back(begin, out_->size());
  return flow;
}

Status Interpreter::Assign(const Expression& target, const Value& value, Scope& scope) {
  switch (target.kind) {
    case Expression::Kind::kName:
      scope.Set(target.name, value);
      return OkStatus();
    case Expression::Kind::kAttribute: {
      const std::string& name = target.operands[0]->name;
      const Value* space = scope.Find(name);
      if (space == nullptr || space->kind() != Value::Kind::kNamespace) {
        return InvalidError("'" + ClipText(name) +
                            "' is no namespace, whose attributes alone can be set");
      }
      auto& attributes = space->space().attributes;
      const auto known =
          std::find_if(attributes.begin(), attributes.end(),
                       [&](const auto& attribute) { return attribute.first == target.name; });
      if (known == attributes.end()) {
        attributes.emplace_back(target.name, value);
      } else {
        known->second = value;
      }
      return OkStatus();
    }
    default:
      return AssignAll(target, value, scope);
  }
}

Status Interpreter::AssignAll(const Expression& tuple, const Value& value, Scope& scope) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(value));
  if (items.size() != tuple.operands.size()) {
    return InvalidError(std::to_string(items.size()) + " values are assigned to " +
                        std::to_string(tuple.operands.size()) + " names");
  }
  for (size_t i = 0; i < items.size(); ++i) {
    WEFT_RETURN_IF_ERROR(Assign(*tuple.operands[i], items[i], scope));
  }
  return OkStatus();
}

}  // namespace weft::jinja
