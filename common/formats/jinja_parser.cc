#include "common/formats/jinja_parser.h"

#include <algorithm>
#include <initializer_list>
#include <string>

#include "common/formats/jinja_expression_parser.h"
#include "common/text.h"

namespace weft::jinja {
namespace {

using Kind = Statement::Kind;

constexpr int kDeepest = 50;  ///< Blocks within each other.

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Result<Body> Parse() {
    WEFT_ASSIGN_OR_RETURN(Body body, ParseBody({}));
    return body;
  }

 private:
  /// Statements up to, and without, a tag that begins with one of `ends`, whose "{%" is taken.
  /// None: up to the end of the template.
  Result<Body> ParseBody(std::initializer_list<std::string_view> ends) {
    if (++depth_ > kDeepest) {
      return tokens_.ErrorAt(tokens_.Peek().line, "blocks nested too deeply");
    }
    Body body;
    for (;;) {
      const Token& token = tokens_.Peek();
      if (token.kind == Token::Kind::kEnd) {
        if (ends.size() > 0) {
          return tokens_.Unexpected("'{% " + std::string(*(ends.end() - 1)) + " %}'");
        }
        break;
      }
      if (token.kind == Token::Kind::kBlockBegin) {
        tokens_.Take();
        const bool ended = std::any_of(ends.begin(), ends.end(),
                                       [&](std::string_view end) { return tokens_.IsName(end); });
        if (ended) break;
        WEFT_RETURN_IF_ERROR(ParseTag(body));
        continue;
      }
      StatementPtr statement = New(Kind::kText, token.line);
      if (token.kind == Token::Kind::kData) {
        statement->text = tokens_.Take().text;
      } else {
        statement->kind = Kind::kPrint;
        tokens_.Take();
        WEFT_ASSIGN_OR_RETURN(statement->value, tokens_.ParseTuple());
        WEFT_RETURN_IF_ERROR(tokens_.Expect(Token::Kind::kVariableEnd, "'}}'"));
      }
      body.push_back(std::move(statement));
    }
    --depth_;
    return body;
  }

  static StatementPtr New(Kind kind, int line) {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->line = line;
    return statement;
  }

  Status EndTag() { return tokens_.Expect(Token::Kind::kBlockEnd, "'%}'"); }

  /// The body of a block up to its end tag, which is taken.
  Result<Body> ParseBlock(std::string_view end) {
    WEFT_RETURN_IF_ERROR(EndTag());
    WEFT_ASSIGN_OR_RETURN(Body body, ParseBody({end}));
    tokens_.Take();
    WEFT_RETURN_IF_ERROR(EndTag());
    return body;
  }

  Status ParseTag(Body& body) {
    const int line = tokens_.Peek().line;
    WEFT_ASSIGN_OR_RETURN(const std::string name, tokens_.ExpectAnyName("the name of a statement"));
    StatementPtr statement = New(Kind::kIf, line);
    if (name == "if") {
      WEFT_RETURN_IF_ERROR(ParseIf(*statement));
    } else if (name == "for") {
      WEFT_RETURN_IF_ERROR(ParseFor(*statement));
    } else if (name == "set") {
      WEFT_RETURN_IF_ERROR(ParseSet(*statement));
    } else if (name == "with") {
      WEFT_RETURN_IF_ERROR(ParseWith(*statement));
    } else if (name == "macro") {
      WEFT_RETURN_IF_ERROR(ParseMacro(*statement));
    } else if (name == "filter") {
      statement->kind = Kind::kFilterBlock;
      WEFT_ASSIGN_OR_RETURN(statement->value, tokens_.ParseFilters(nullptr));
      WEFT_ASSIGN_OR_RETURN(statement->body, ParseBlock("endfilter"));
    } else if (name == "generation") {
      statement->kind = Kind::kGeneration;
      WEFT_ASSIGN_OR_RETURN(statement->body, ParseBlock("endgeneration"));
    } else if (name == "break" || name == "continue") {
      if (loops_ == 0) return tokens_.ErrorAt(line, "'" + name + "' outside of a loop");
      statement->kind = name == "break" ? Kind::kBreak : Kind::kContinue;
      WEFT_RETURN_IF_ERROR(EndTag());
    } else {
      return tokens_.ErrorAt(line, "no statement '" + ClipText(name) + "' is known here");
    }
    body.push_back(std::move(statement));
    return OkStatus();
  }

  Status ParseIf(Statement& statement) {
    for (bool more = true; more;) {
      Statement::Branch branch;
      WEFT_ASSIGN_OR_RETURN(branch.condition, tokens_.ParseTuple());
      WEFT_RETURN_IF_ERROR(EndTag());
      WEFT_ASSIGN_OR_RETURN(branch.body, ParseBody({"elif", "else", "endif"}));
      statement.branches.push_back(std::move(branch));
      more = tokens_.TakeName("elif");
    }
    if (tokens_.IsName("else")) {
      tokens_.Take();
      WEFT_ASSIGN_OR_RETURN(statement.otherwise, ParseBlock("endif"));
      return OkStatus();
    }
    tokens_.Take();
    return EndTag();
  }

  Status ParseFor(Statement& statement) {
    statement.kind = Kind::kFor;
    WEFT_ASSIGN_OR_RETURN(statement.target, tokens_.ParseTarget());
    WEFT_RETURN_IF_ERROR(tokens_.ExpectName("in"));
    WEFT_ASSIGN_OR_RETURN(statement.value, tokens_.ParseWithoutConditional());
    if (tokens_.TakeName("if")) {
      WEFT_ASSIGN_OR_RETURN(statement.condition, tokens_.ParseExpression());
    }
    if (tokens_.IsName("recursive")) {
      return tokens_.ErrorAt(statement.line,
                             "recursive loops are not supported; hint: a macro can "
                             "call itself");
    }
    WEFT_RETURN_IF_ERROR(EndTag());
    ++loops_;
    WEFT_ASSIGN_OR_RETURN(statement.body, ParseBody({"else", "endfor"}));
    --loops_;
    if (tokens_.IsName("else")) {
      tokens_.Take();
      WEFT_ASSIGN_OR_RETURN(statement.otherwise, ParseBlock("endfor"));
      return OkStatus();
    }
    tokens_.Take();
    return EndTag();
  }

  Status ParseSet(Statement& statement) {
    WEFT_ASSIGN_OR_RETURN(statement.target, tokens_.ParseTarget());
    if (tokens_.TakeOperator("=")) {
      statement.kind = Kind::kSet;
      WEFT_ASSIGN_OR_RETURN(statement.value, tokens_.ParseTuple());
      return EndTag();
    }
    statement.kind = Kind::kSetBlock;
    if (statement.target->kind == Expression::Kind::kTuple) return tokens_.Unexpected("'='");
    if (tokens_.TakeOperator("|")) {
      WEFT_ASSIGN_OR_RETURN(statement.value, tokens_.ParseFilters(nullptr));
    }
    WEFT_ASSIGN_OR_RETURN(statement.body, ParseBlock("endset"));
    return OkStatus();
  }

  Status ParseWith(Statement& statement) {
    statement.kind = Kind::kWith;
    while (tokens_.Peek().kind != Token::Kind::kBlockEnd) {
      if (!statement.assignments.empty()) WEFT_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      ExpressionPtr target = std::make_unique<Expression>();
      target->kind = Expression::Kind::kName;
      target->line = tokens_.Peek().line;
      WEFT_ASSIGN_OR_RETURN(target->name, tokens_.ExpectAnyName("a name to assign to"));
      WEFT_RETURN_IF_ERROR(tokens_.ExpectOperator("="));
      WEFT_ASSIGN_OR_RETURN(ExpressionPtr value, tokens_.ParseExpression());
      statement.assignments.emplace_back(std::move(target), std::move(value));
    }
    ++scopes_;
    WEFT_ASSIGN_OR_RETURN(statement.body, ParseBlock("endwith"));
    --scopes_;
    return OkStatus();
  }

  Status ParseMacro(Statement& statement) {
    if (scopes_ > 0 || loops_ > 0) {
      return tokens_.ErrorAt(
          statement.line,
          "a macro is defined within a loop, a with block or another macro; hint: "
          "define it outside");
    }
    statement.kind = Kind::kMacro;
    statement.macro = std::make_unique<Macro>();
    Macro& macro = *statement.macro;
    macro.line = statement.line;
    WEFT_ASSIGN_OR_RETURN(macro.name, tokens_.ExpectAnyName("the name of a macro"));
    WEFT_RETURN_IF_ERROR(tokens_.ExpectOperator("("));
    while (!tokens_.TakeOperator(")")) {
      if (!macro.parameters.empty()) WEFT_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      WEFT_ASSIGN_OR_RETURN(std::string name, tokens_.ExpectAnyName("the name of a parameter"));
      macro.parameters.push_back(std::move(name));
      if (tokens_.TakeOperator("=")) {
        WEFT_ASSIGN_OR_RETURN(ExpressionPtr value, tokens_.ParseExpression());
        macro.defaults.push_back(std::move(value));
      } else if (!macro.defaults.empty()) {
        return tokens_.Unexpected("a default as that of the parameter before");
      }
    }
    ++scopes_;
    WEFT_ASSIGN_OR_RETURN(macro.body, ParseBlock("endmacro"));
    --scopes_;
    return OkStatus();
  }

  ExpressionParser tokens_;
  int depth_ = 0;
  int loops_ = 0;   ///< That are open.
  int scopes_ = 0;  ///< Macros and with blocks that are open.
};

}  // namespace

Result<Body> ParseTemplate(std::string_view source) {
  WEFT_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Parse();
}

}  // namespace weft::jinja
