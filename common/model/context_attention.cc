#include "common/model/context_attention.h"

#include <algorithm>

#include "common/model/model_sizes.h"

namespace weft {
namespace {

constexpr int64_t kF32 = 4;

/// Columns of keys and values together, of all ranks: some have the same ones where there are more
/// ranks than heads.
int64_t KeyColumns(const ModelShape& shape, const ContextSharing& sharing) {
  const int64_t here = KvHeads(shape.spec) / shape.TensorColumns();
  return 2 * (sharing.ulysses ? std::max(here, sharing.ranks) : here) * HeadWidth(shape.spec);
}

/// Columns of queries.
int64_t QueryColumns(const ModelShape& shape) {
  return QueryWidth(shape.spec) / shape.TensorColumns();
}

/// An all-to-all of `columns` of each own token.
ContextTraffic ScatterTokens(const ContextSharing& sharing, int64_t tokens, int64_t columns,
                             int64_t element) {
  return {tokens * columns * element / sharing.ranks * (sharing.ranks - 1), sharing.ranks - 1};
}

ContextTraffic Sum(const ContextTraffic& a, const ContextTraffic& b) {
  return {a.sent + b.sent, a.messages + b.messages};
}

}  // namespace

ContextTraffic ForwardTraffic(const ModelShape& shape, const ContextSharing& sharing,
                              int64_t tokens, int64_t element) {
  const int64_t keys = KeyColumns(shape, sharing), queries = QueryColumns(shape);
  const int64_t others = sharing.ranks - 1;
  if (!sharing.ulysses) return {others * tokens * keys * element, others};
  return Sum(ScatterTokens(sharing, tokens, queries + keys, element),
             ScatterTokens(sharing, tokens, queries, element));
}

ContextTraffic BackwardTraffic(const ModelShape& shape, const ContextSharing& sharing,
                               int64_t tokens, int64_t element) {
  const int64_t keys = KeyColumns(shape, sharing), queries = QueryColumns(shape);
  if (!sharing.ulysses) {
    // The keys once more, and their gradients all the way home.
    return Sum(ForwardTraffic(shape, sharing, tokens, element),
               {sharing.ranks * tokens * keys * kF32, sharing.ranks});
  }
  return Sum(ScatterTokens(sharing, tokens, 3 * queries + keys, element),
             ScatterTokens(sharing, tokens, queries + keys, element));
}

int64_t ContextWorkspaceBytes(const ModelShape& shape, const ContextSharing& sharing,
                              int64_t tokens, int64_t element) {
  if (sharing.ranks == 1) return 0;
  const int64_t keys = tokens * KeyColumns(shape, sharing);
  const int64_t row = tokens * QueryColumns(shape);
  // Two buffers of keys on their way; sums of the own queries' gradients, and of keys' those here,
  // those that come and what is added to them.
  if (!sharing.ulysses) return 2 * keys * element + (row + 3 * keys) * kF32;
  // Queries, keys, values, results and their gradients, in the order of ranks and of tokens; and
  // which is which.
  return 2 * (3 * row + keys) * element + tokens * sharing.ranks * kF32;
}

}  // namespace weft
