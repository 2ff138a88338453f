#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/formats/jinja_value.h"

namespace weft::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

/// A part of an expression, with its operands in `operands`.
struct Expression {
  enum class Kind : uint8_t {
    kConstant,     ///< `constant`
    kName,         ///< `name`
    kAttribute,    ///< operand . `name`
    kItem,         ///< operand [operand]
    kSlice,        ///< operand [operand : operand : operand]; null where left out
    kCall,         ///< The first operand, called with the others and `keywords`.
    kFilter,       ///< The first operand | `name`(the others, keywords); null in filter blocks.
    kTest,         ///< The first operand is `name`(the others)
    kNot,          ///< not operand
    kNegative,     ///< - operand
    kPositive,     ///< + operand
    kAnd,          ///< operand and operand
    kOr,           ///< operand or operand
    kBinary,       ///< operand `name` operand: an operator of numbers, strings, lists
    kConcatenate,  ///< All operands as text: ~
    kCompare,      ///< operand op operand op operand; `operators` has the ops
    kConditional,  ///< operand if operand else operand (null where left out)
    kList,         ///< [operands]
    kTuple,        ///< (operands)
    kMapping       ///< {operand: operand, ...}
  };
  Kind kind = Kind::kConstant;
  int line = 1;
  int depth = 1;  ///< Levels of expressions below, this one included.
  Value constant;
  std::string name;
  std::vector<ExpressionPtr> operands;
  std::vector<std::pair<std::string, ExpressionPtr>> keywords;
  std::vector<std::string> operators;
};

struct Statement;
using StatementPtr = std::unique_ptr<Statement>;
using Body = std::vector<StatementPtr>;

/// A macro: parameters, the last of them with defaults, and what it prints.
struct Macro {
  std::string name;
  int line = 1;
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;  ///< Of the last parameters.
  Body body;
};

/// A part of a template.
struct Statement {
  enum class Kind : uint8_t {
    kText,         ///< `text`
    kPrint,        ///< {{ value }}
    kIf,           ///< The body of the first of `branches` whose condition holds, or `otherwise`.
    kFor,          ///< `body` for each `target` of `value` if `condition`; `otherwise` if none.
    kSet,          ///< {% set target = value %}
    kSetBlock,     ///< {% set target | filters %} body {% endset %}
    kWith,         ///< {% with target = value, ... %} body {% endwith %}: `assignments`
    kFilterBlock,  ///< {% filter value %} body {% endfilter %}
    kMacro,        ///< `macro`
    kGeneration,   ///< {% generation %} body {% endgeneration %}
    kBreak,
    kContinue
  };
  struct Branch {
    ExpressionPtr condition;
    Body body;
  };
  Kind kind = Kind::kText;
  int line = 1;
  std::string text;
  ExpressionPtr target;  ///< A name, an attribute of a name, or a tuple of these.
  ExpressionPtr value;
  ExpressionPtr condition;
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> assignments;
  std::vector<Branch> branches;
  Body body;
  Body otherwise;
  std::unique_ptr<Macro> macro;
};

}  // namespace weft::jinja
