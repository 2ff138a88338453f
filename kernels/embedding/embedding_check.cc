#include "kernels/embedding/embedding_check.h"

#include <string>

#include "kernels/argument_check.h"

namespace weft::kernels {
namespace {

// The checks that both directions share: `rows` is out or dout, the tables those or their
// gradients, where some may be missing.
void Check(ArgumentCheck& check, const TensorView& tokens, const TensorView& positions,
           const TensorView& token_table, const TensorView& position_table, const char* rows_name,
           const TensorView& rows, std::initializer_list<DType> table_types) {
  check.That(tokens.shape.rank == 1, "tokens is not a vector")
      .That(rows.shape.rank == 2, std::string(rows_name) + " is not a matrix")
      .That(!token_table || token_table.shape.rank == 2, "the token table is not a matrix")
      .That(static_cast<bool>(positions) == static_cast<bool>(position_table),
            "positions and their table come together")
      .That(!position_table || position_table.shape.rank == 2,
            "the position table is not a matrix");
  if (!check.status().ok()) return;
  const int64_t count = tokens.shape[0], width = rows.shape[1];
  check.ContiguousTensor("tokens", tokens, tokens.shape, {DType::kI32})
      .ContiguousTensor(rows_name, rows, {count, width}, kFloatTypes);
  if (token_table) {
    check.ContiguousTensor("the token table", token_table, {token_table.shape[0], width},
                           table_types);
  }
  if (position_table) {
    check.ContiguousTensor("positions", positions, {count}, {DType::kI32})
        .ContiguousTensor("the position table", position_table, {position_table.shape[0], width},
                          {token_table.dtype});
  }
}

void CheckPart(ArgumentCheck& check, const TensorView& token_table, const EmbeddingPart& part) {
  if (part.vocabulary == 0 || !token_table || !check.status().ok()) return;
  check.That(part.first_row >= 0 && part.first_row + token_table.shape[0] <= part.vocabulary,
             "the token table is no part of a vocabulary of " + std::to_string(part.vocabulary));
}

}  // namespace

Status CheckEmbeddingForward(const Stream& stream, const EmbeddingForwardArgs& args) {
  ArgumentCheck check(stream, "EmbeddingForward");
  check.That(static_cast<bool>(args.token_table), "the token table is missing");
  Check(check, args.tokens, args.positions, args.token_table, args.position_table, "out", args.out,
        kMatrixTypes);
  CheckPart(check, args.token_table, args.part);
  return check.status();
}

Status CheckEmbeddingBackward(const Stream& stream, const EmbeddingBackwardArgs& args) {
  ArgumentCheck check(stream, "EmbeddingBackward");
  // Without a gradient table for them, positions do not matter.
  Check(check, args.tokens, args.dposition_table ? args.positions : TensorView(), args.dtoken_table,
        args.dposition_table, "dout", args.dout, {DType::kF32});
  CheckPart(check, args.dtoken_table, args.part);
  return check.status();
}

}  // namespace weft::kernels
