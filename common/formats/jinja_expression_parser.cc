#include "common/formats/jinja_expression_parser.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "common/formats/jinja_builtins.h"
#include "common/text.h"

namespace weft::jinja {
namespace {

using Kind = Expression::Kind;

constexpr int kDeepest = 200;   ///< Levels of an expression.
constexpr int kMostOpen = 100;  ///< Brackets and prefixes within each other.
constexpr size_t kMostArguments = 50;

ExpressionPtr New(Kind kind, int line) {
  auto expression = std::make_unique<Expression>();
  expression->kind = kind;
  expression->line = line;
  return expression;
}

ExpressionPtr NewConstant(Value value, int line) {
  ExpressionPtr expression = New(Kind::kConstant, line);
  expression->constant = std::move(value);
  return expression;
}

/// Counts what is open as long as it lives.
class Opened {
 public:
  explicit Opened(int& count) : count_(count) { ++count_; }
  ~Opened() { --count_; }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

 private:
  int& count_;
};

std::string Described(const Token& token) {
  switch (token.kind) {
    case Token::Kind::kEnd:
      return "the end of the template";
    case Token::Kind::kBlockEnd:
      return "'%}'";
    case Token::Kind::kVariableEnd:
      return "'}}'";
    case Token::Kind::kString:
      return "the string '" + ClipText(token.text, 40) + "'";
    default:
      return "'" + ClipText(token.text, 40) + "'";
  }
}

}  // namespace

bool ExpressionParser::TakeOperator(std::string_view text) {
  if (!IsOperator(text)) return false;
  Take();
  return true;
}

bool ExpressionParser::TakeName(std::string_view text) {
  if (!IsName(text)) return false;
  Take();
  return true;
}

Status ExpressionParser::ErrorAt(int line, const std::string& what) const {
  return InvalidError("line " + std::to_string(line) + ": " + what);
}

Status ExpressionParser::Unexpected(std::string_view expected) const {
  return ErrorAt(Peek().line,
                 std::string(expected) + " is expected, but " + Described(Peek()) + " follows");
}

Status ExpressionParser::ExpectOperator(std::string_view text) {
  return TakeOperator(text) ? OkStatus() : Unexpected("'" + std::string(text) + "'");
}

Status ExpressionParser::ExpectName(std::string_view text) {
  return TakeName(text) ? OkStatus() : Unexpected("'" + std::string(text) + "'");
}

Status ExpressionParser::Expect(Token::Kind kind, std::string_view what) {
  if (Peek().kind != kind) return Unexpected(what);
  Take();
  return OkStatus();
}

Result<std::string> ExpressionParser::ExpectAnyName(std::string_view what) {
  if (Peek().kind != Token::Kind::kName) return Unexpected(what);
  return Take().text;
}

/// Sets the depth of an expression whose operands are complete.
Result<ExpressionPtr> ExpressionParser::Leave(ExpressionPtr expression) {
  auto include = [&](const ExpressionPtr& operand) {
    if (operand != nullptr) expression->depth = std::max(expression->depth, operand->depth + 1);
  };
  for (const ExpressionPtr& operand : expression->operands) include(operand);
  for (const auto& [name, operand] : expression->keywords) include(operand);
  if (expression->depth <= kDeepest) return expression;
  return ErrorAt(expression->line,
                 "an expression of more than " + std::to_string(kDeepest) + " levels");
}

Result<ExpressionPtr> ExpressionParser::ParseTuple() {
  const int line = Peek().line;
  WEFT_ASSIGN_OR_RETURN(ExpressionPtr first, ParseExpression());
  if (!IsOperator(",")) return first;
  ExpressionPtr tuple = New(Kind::kTuple, line);
  tuple->operands.push_back(std::move(first));
  while (TakeOperator(",")) {
    const Token::Kind next = Peek().kind;
    if (next == Token::Kind::kBlockEnd || next == Token::Kind::kVariableEnd || IsOperator(")")) {
      break;
    }
    WEFT_ASSIGN_OR_RETURN(ExpressionPtr item, ParseExpression());
    tuple->operands.push_back(std::move(item));
  }
  return Leave(std::move(tuple));
}

Result<ExpressionPtr> ExpressionParser::ParseExpression() {
  const Opened opened(open_);
  if (open_ > kMostOpen) return ErrorAt(Peek().line, "brackets nested too deeply");
  WEFT_ASSIGN_OR_RETURN(ExpressionPtr value, ParseOr());
  while (IsName("if")) {
    ExpressionPtr conditional = New(Kind::kConditional, Take().line);
    WEFT_ASSIGN_OR_RETURN(ExpressionPtr condition, ParseOr());
    ExpressionPtr otherwise;
    if (TakeName("else")) {
      WEFT_ASSIGN_OR_RETURN(otherwise, ParseExpression());
    }
    conditional->operands.push_back(std::move(value));
    conditional->operands.push_back(std::move(condition));
    conditional->operands.push_back(std::move(otherwise));
    WEFT_ASSIGN_OR_RETURN(value, Leave(std::move(conditional)));
  }
  return value;
}

Result<ExpressionPtr> ExpressionParser::ParseWithoutConditional() {
  return ParseOr();
}

Result<ExpressionPtr> ExpressionParser::ParseLeftToRight(
    Step operand, Kind kind, std::initializer_list<std::string_view> operators) {
  WEFT_ASSIGN_OR_RETURN(ExpressionPtr left, (this->*operand)());
  for (;;) {
    const auto* op = std::find_if(operators.begin(), operators.end(), [&](std::string_view text) {
      return kind == Kind::kBinary ? IsOperator(text) : IsName(text);
    });
    if (op == operators.end()) return left;
    ExpressionPtr both = New(kind, Take().line);
    both->name = *op;
    both->operands.push_back(std::move(left));
    WEFT_ASSIGN_OR_RETURN(ExpressionPtr right, (this->*operand)());
    both->operands.push_back(std::move(right));
    WEFT_ASSIGN_OR_RETURN(left, Leave(std::move(both)));
  }
}

Result<ExpressionPtr> ExpressionParser::ParseOr() {
  return ParseLeftToRight(&ExpressionParser::ParseAnd, Kind::kOr, {"or"});
}

Result<ExpressionPtr> ExpressionParser::ParseAnd() {
  return ParseLeftToRight(&ExpressionParser::ParseNot, Kind::kAnd, {"and"});
}

Result<ExpressionPtr> ExpressionParser::ParseNot() {
  if (!IsName("not")) return ParseCompare();
  const Opened opened(open_);
  if (open_ > kMostOpen) return ErrorAt(Peek().line, "too many 'not' in a row");
  ExpressionPtr negated = New(Kind::kNot, Take().line);
  WEFT_ASSIGN_OR_RETURN(ExpressionPtr operand, ParseNot());
  negated->operands.push_back(std::move(operand));
  return Leave(std::move(negated));
}

Result<ExpressionPtr> ExpressionParser::ParseCompare() {
  constexpr std::array<std::string_view, 6> kCompares = {"==", "!=", "<", "<=", ">", ">="};
  ExpressionPtr compare = New(Kind::kCompare, Peek().line);
  WEFT_ASSIGN_OR_RETURN(ExpressionPtr operand, ParseSum());
  for (;;) {
    const bool compares = std::any_of(kCompares.begin(), kCompares.end(),
                                      [&](std::string_view text) { return IsOperator(text); });
    if (compares) {
      compare->operators.push_back(Take().text);
    } else if (TakeName("in")) {
      compare->operators.emplace_back("in");
    } else if (IsName("not") && at_ + 1 < tokens_.size() &&
               tokens_[at_ + 1].kind == Token::Kind::kName && tokens_[at_ + 1].text == "in") {
      Take();
      Take();
      compare->operators.emplace_back("not in");
    } else {
      break;
    }
    compare->operands.push_back(std::move(operand));
    WEFT_ASSIGN_OR_RETURN(operand, ParseSum());
  }
  if (compare->operands.empty()) return operand;
  compare->operands.push_back(std::move(operand));
  return Leave(std::move(compare));
}

Result<ExpressionPtr> ExpressionParser::ParseSum() {
  return ParseLeftToRight(&ExpressionParser::ParseConcatenation, Kind::kBinary, {"+", "-"});
}

Result<ExpressionPtr> ExpressionParser::ParseConcatenation() {
  ExpressionPtr all = New(Kind::kConcatenate, Peek().line);
  WEFT_ASSIGN_OR_RETURN(ExpressionPtr first, ParseProduct());
  if (!IsOperator("~")) return first;
  all->operands.push_back(std::move(first));
  while (TakeOperator("~")) {
    WEFT_ASSIGN_OR_RETURN(ExpressionPtr next, ParseProduct());
    all->operands.push_back(std::move(next));
  }
  return Leave(std::move(all));
}

Result<ExpressionPtr> ExpressionParser::ParseProduct() {
  return ParseLeftToRight(&ExpressionParser::ParsePower, Kind::kBinary, {"*", "//", "/", "%"});
}

Result<ExpressionPtr> ExpressionParser::ParsePower() {
  return ParseLeftToRight(&ExpressionParser::ParseSigned, Kind::kBinary, {"**"});
}

Result<ExpressionPtr> ExpressionParser::ParseSigned() {
  return ParseUnary(/*with_filters=*/true);
}

Result<ExpressionPtr> ExpressionParser::ParseUnary(bool with_filters) {
  const Opened opened(open_);
  if (open_ > kMostOpen) return ErrorAt(Peek().line, "too many signs in a row");
  ExpressionPtr expression;
  if (IsOperator("-") || IsOperator("+")) {
    const Token sign = Take();
    expression = New(sign.text == "-" ? Kind::kNegative : Kind::kPositive, sign.line);
    WEFT_ASSIGN_OR_RETURN(ExpressionPtr operand, ParseUnary(/*with_filters=*/false));
    expression->operands.push_back(std::move(operand));
    WEFT_ASSIGN_OR_RETURN(expression, Leave(std::move(expression)));
  } else {
    WEFT_ASSIGN_OR_RETURN(expression, ParsePrimary());
  }
  WEFT_ASSIGN_OR_RETURN(expression, ParsePostfix(std::move(expression)));
  return with_filters ? ParseFiltersAndTests(std::move(expression)) : std::move(expression);
}

Result<ExpressionPtr> ExpressionParser::ParsePrimary() {
  const Token& token = Peek();
  const int line = token.line;
  if (token.kind == Token::Kind::kInteger || token.kind == Token::Kind::kFloat) {
    return ParseNumber();
  }
  if (token.kind == Token::Kind::kString) {
    std::string text;
    while (Peek().kind == Token::Kind::kString) text += Take().text;
    return NewConstant(Value::String(std::move(text)), line);
  }
  if (IsOperator("(")) return ParseParentheses();
  if (IsOperator("[")) return ParseListDisplay();
  if (IsOperator("{")) return ParseMappingDisplay();
  if (token.kind != Token::Kind::kName) return Unexpected("a value");
  ExpressionPtr name = New(Kind::kName, line);
  name->name = Take().text;
  const std::string& text = name->name;
  if (text == "true" || text == "True") return NewConstant(Value::Boolean(true), line);
  if (text == "false" || text == "False") return NewConstant(Value::Boolean(false), line);
  if (text == "none" || text == "None") return NewConstant(Value(), line);
  return name;
}

Result<ExpressionPtr> ExpressionParser::ParseNumber() {
  const Token token = Take();
  const char* begin = token.text.data();
  const char* end = begin + token.text.size();
  if (token.kind == Token::Kind::kFloat) {
    double number = 0;
    if (std::from_chars(begin, end, number).ec == std::errc()) {
      return NewConstant(Value::Float(number), token.line);
    }
  } else {
    int64_t number = 0;
    const auto [stop, error] = std::from_chars(begin, end, number);
    if (error == std::errc() && stop == end) {
      return NewConstant(Value::Integer(number), token.line);
    }
  }
  return ErrorAt(token.line, "the number " + ClipText(token.text, 40) + " is out of range");
}

Result<ExpressionPtr> ExpressionParser::ParseParentheses() {
  const int line = Take().line;
  if (TakeOperator(")")) return New(Kind::kTuple, line);
  WEFT_ASSIGN_OR_RETURN(ExpressionPtr inner, ParseTuple());
  WEFT_RETURN_IF_ERROR(ExpectOperator(")"));
  return inner;
}

Result<ExpressionPtr> ExpressionParser::ParseListDisplay() {
  ExpressionPtr list = New(Kind::kList, Take().line);
  while (!TakeOperator("]")) {
    if (!list->operands.empty()) {
      WEFT_RETURN_IF_ERROR(ExpectOperator(","));
      if (TakeOperator("]")) break;
    }
    WEFT_ASSIGN_OR_RETURN(ExpressionPtr item, ParseExpression());
    list->operands.push_back(std::move(item));
  }
  return Leave(std::move(list));
}

Result<ExpressionPtr> ExpressionParser::ParseMappingDisplay() {
  ExpressionPtr mapping = New(Kind::kMapping, Take().line);
  while (!TakeOperator("}")) {
    if (!mapping->operands.empty()) {
      WEFT_RETURN_IF_ERROR(ExpectOperator(","));
      if (TakeOperator("}")) break;
    }
    WEFT_ASSIGN_OR_RETURN(ExpressionPtr key, ParseExpression());
    WEFT_RETURN_IF_ERROR(ExpectOperator(":"));
    WEFT_ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
    mapping->operands.push_back(std::move(key));
    mapping->operands.push_back(std::move(value));
  }
  return Leave(std::move(mapping));
}

Result<ExpressionPtr> ExpressionParser::ParsePostfix(ExpressionPtr expression) {
  for (;;) {
    const int line = Peek().line;
    if (TakeOperator(".")) {
      ExpressionPtr attribute = New(Kind::kAttribute, line);
      WEFT_ASSIGN_OR_RETURN(attribute->name, ExpectAnyName("the name of an attribute"));
      attribute->operands.push_back(std::move(expression));
      WEFT_ASSIGN_OR_RETURN(expression, Leave(std::move(attribute)));
    } else if (IsOperator("[")) {
      WEFT_ASSIGN_OR_RETURN(expression, ParseSubscript(std::move(expression)));
    } else if (IsOperator("(")) {
      ExpressionPtr call = New(Kind::kCall, line);
      call->operands.push_back(std::move(expression));
      WEFT_RETURN_IF_ERROR(ParseArguments(*call));
      WEFT_ASSIGN_OR_RETURN(expression, Leave(std::move(call)));
    } else {
      return expression;
    }
  }
}

Result<ExpressionPtr> ExpressionParser::ParseSubscript(ExpressionPtr expression) {
  const int line = Take().line;
  std::vector<ExpressionPtr> parts(1);
  while (!IsOperator("]")) {
    if (TakeOperator(":")) {
      parts.emplace_back();
    } else if (parts.back() == nullptr) {
      WEFT_ASSIGN_OR_RETURN(parts.back(), ParseExpression());
    } else {
      return Unexpected("']'");
    }
  }
  if (parts.size() > 3 || (parts.size() == 1 && parts[0] == nullptr)) {
    return Unexpected("an index or a slice");
  }
  Take();
  const bool slice = parts.size() > 1;
  ExpressionPtr item = New(slice ? Kind::kSlice : Kind::kItem, line);
  if (slice) parts.resize(3);
  item->operands.push_back(std::move(expression));
  for (ExpressionPtr& part : parts) item->operands.push_back(std::move(part));
  return Leave(std::move(item));
}

Status ExpressionParser::ParseArguments(Expression& call) {
  WEFT_RETURN_IF_ERROR(ExpectOperator("("));
  for (bool first = true; !TakeOperator(")"); first = false) {
    if (!first) {
      WEFT_RETURN_IF_ERROR(ExpectOperator(","));
      if (TakeOperator(")")) break;
    }
    if (call.operands.size() + call.keywords.size() > kMostArguments) {
      return ErrorAt(Peek().line, "a call with too many arguments");
    }
    if (IsOperator("*") || IsOperator("**")) {
      return ErrorAt(Peek().line, "'*' before arguments is not supported");
    }
    const bool keyword = Peek().kind == Token::Kind::kName && at_ + 1 < tokens_.size() &&
                         tokens_[at_ + 1].kind == Token::Kind::kOperator &&
                         tokens_[at_ + 1].text == "=";
    if (keyword) {
      std::string name = Take().text;
      Take();
      WEFT_ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
      call.keywords.emplace_back(std::move(name), std::move(value));
    } else if (!call.keywords.empty()) {
      return Unexpected("a named argument");
    } else {
      WEFT_ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
      call.operands.push_back(std::move(value));
    }
  }
  return OkStatus();
}

Result<ExpressionPtr> ExpressionParser::ParseFiltersAndTests(ExpressionPtr expression) {
  for (;;) {
    if (IsOperator("|")) {
      Take();
      WEFT_ASSIGN_OR_RETURN(expression, ParseFilters(std::move(expression)));
    } else if (TakeName("is")) {
      WEFT_ASSIGN_OR_RETURN(expression, ParseTest(std::move(expression)));
    } else if (IsOperator("(")) {  // what a filter gives, called
      WEFT_ASSIGN_OR_RETURN(expression, ParsePostfix(std::move(expression)));
    } else {
      return expression;
    }
  }
}

Result<ExpressionPtr> ExpressionParser::ParseFilters(ExpressionPtr input) {
  do {
    ExpressionPtr filter = New(Kind::kFilter, Peek().line);
    WEFT_ASSIGN_OR_RETURN(filter->name, ExpectAnyName("the name of a filter"));
    if (!IsFilter(filter->name)) {
      return ErrorAt(filter->line, "no filter '" + ClipText(filter->name) + "' is known");
    }
    filter->operands.push_back(std::move(input));
    if (IsOperator("(")) WEFT_RETURN_IF_ERROR(ParseArguments(*filter));
    WEFT_ASSIGN_OR_RETURN(input, Leave(std::move(filter)));
  } while (TakeOperator("|"));
  return input;
}

bool ExpressionParser::TestArgumentFollows() const {
  switch (Peek().kind) {
    case Token::Kind::kString:
    case Token::Kind::kInteger:
    case Token::Kind::kFloat:
      return true;
    case Token::Kind::kName:
      return !IsName("else") && !IsName("or") && !IsName("and") && !IsName("is") && !IsName("if") &&
             !IsName("not") && !IsName("in");
    default:
      return IsOperator("[") || IsOperator("{");
  }
}

Result<ExpressionPtr> ExpressionParser::ParseTest(ExpressionPtr expression) {
  const int line = Peek().line;
  const bool negated = TakeName("not");
  ExpressionPtr test = New(Kind::kTest, line);
  WEFT_ASSIGN_OR_RETURN(test->name, ExpectAnyName("the name of a test"));
  if (!IsTest(test->name)) return ErrorAt(line, "no test '" + ClipText(test->name) + "' is known");
  test->operands.push_back(std::move(expression));
  if (IsOperator("(")) {
    WEFT_RETURN_IF_ERROR(ParseArguments(*test));
  } else if (TestArgumentFollows()) {
    WEFT_ASSIGN_OR_RETURN(ExpressionPtr argument, ParsePrimary());
    WEFT_ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
    test->operands.push_back(std::move(argument));
  }
  if (!negated) return Leave(std::move(test));
  WEFT_ASSIGN_OR_RETURN(test, Leave(std::move(test)));
  ExpressionPtr inverse = New(Kind::kNot, line);
  inverse->operands.push_back(std::move(test));
  return Leave(std::move(inverse));
}

Result<ExpressionPtr> ExpressionParser::ParseTarget() {
  const int line = Peek().line;
  ExpressionPtr tuple = New(Kind::kTuple, line);
  const bool parentheses = TakeOperator("(");
  do {
    if (!tuple->operands.empty() && Peek().kind != Token::Kind::kName) break;
    ExpressionPtr target = New(Kind::kName, Peek().line);
    WEFT_ASSIGN_OR_RETURN(target->name, ExpectAnyName("a name to assign to"));
    if (TakeOperator(".")) {
      ExpressionPtr attribute = New(Kind::kAttribute, target->line);
      WEFT_ASSIGN_OR_RETURN(attribute->name, ExpectAnyName("the name of an attribute"));
      attribute->operands.push_back(std::move(target));
      target = std::move(attribute);
    }
    tuple->operands.push_back(std::move(target));
  } while (IsOperator(",") && (Take(), true));
  if (parentheses) WEFT_RETURN_IF_ERROR(ExpectOperator(")"));
  if (tuple->operands.size() == 1) return std::move(tuple->operands.front());
  return tuple;
}

}  // namespace weft::jinja
