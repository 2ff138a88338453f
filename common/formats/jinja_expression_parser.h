#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "common/formats/jinja_lexer.h"
#include "common/formats/jinja_syntax.h"
#include "common/status.h"

namespace weft::jinja {

/// Reads tokens one after the other, and the expressions among them.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& Peek() const { return tokens_[at_]; }
  Token Take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool IsOperator(std::string_view text) const { return Is(Token::Kind::kOperator, text); }
  bool IsName(std::string_view text) const { return Is(Token::Kind::kName, text); }

  /// Takes the token when it is this one.
  bool TakeOperator(std::string_view text);
  bool TakeName(std::string_view text);

  // Take what must be there. kInvalid: something else is.
  Status ExpectOperator(std::string_view text);
  Status ExpectName(std::string_view text);
  Status Expect(Token::Kind kind, std::string_view what);
  Result<std::string> ExpectAnyName(std::string_view what);

  /// "line 3: " and what is wrong with the next token.
  Status Unexpected(std::string_view expected) const;
  Status ErrorAt(int line, const std::string& what) const;

  /// An expression; several with commas between them are a tuple.
  Result<ExpressionPtr> ParseTuple();

  /// One expression, with "a if b else c".
  Result<ExpressionPtr> ParseExpression();

  /// One expression without "if" and "else" of its own.
  Result<ExpressionPtr> ParseWithoutConditional();

  /// What can be assigned to: a name, an attribute of one, or a tuple of these.
  Result<ExpressionPtr> ParseTarget();

  /// filter | filter: applied to `input`, which is null for the text of a block.
  Result<ExpressionPtr> ParseFilters(ExpressionPtr input);

 private:
  using Step = Result<ExpressionPtr> (ExpressionParser::*)();

  bool Is(Token::Kind kind, std::string_view text) const {
    return Peek().kind == kind && Peek().text == text;
  }

  Result<ExpressionPtr> Leave(ExpressionPtr expression);
  Result<ExpressionPtr> ParseLeftToRight(Step operand, Expression::Kind kind,
                                         std::initializer_list<std::string_view> operators);
  Result<ExpressionPtr> ParseOr();
  Result<ExpressionPtr> ParseAnd();
  Result<ExpressionPtr> ParseNot();
  Result<ExpressionPtr> ParseCompare();
  Result<ExpressionPtr> ParseSum();
  Result<ExpressionPtr> ParseConcatenation();
  Result<ExpressionPtr> ParseProduct();
  Result<ExpressionPtr> ParsePower();
  Result<ExpressionPtr> ParseSigned();
  Result<ExpressionPtr> ParseUnary(bool with_filters);
  Result<ExpressionPtr> ParsePrimary();
  Result<ExpressionPtr> ParseNumber();
  Result<ExpressionPtr> ParseParentheses();
  Result<ExpressionPtr> ParseListDisplay();
  Result<ExpressionPtr> ParseMappingDisplay();
  Result<ExpressionPtr> ParsePostfix(ExpressionPtr expression);
  Result<ExpressionPtr> ParseSubscript(ExpressionPtr expression);
  Result<ExpressionPtr> ParseFiltersAndTests(ExpressionPtr expression);
  Result<ExpressionPtr> ParseTest(ExpressionPtr expression);
  Status ParseArguments(Expression& call);
  bool TestArgumentFollows() const;

  std::vector<Token> tokens_;  ///< The last one is kEnd.
  size_t at_ = 0;
  int open_ = 0;  ///< Expressions that are being parsed.
};

}  // namespace weft::jinja
