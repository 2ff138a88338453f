#pragma once

#include <cstdint>
#include <string>

#include "worker/engine/autograd/tape.h"
#include "worker/engine/nn/graft.h"
#include "worker/engine/nn/parameter_set.h"

namespace weft::engine {

/// Token plus learned position embedding: two parameters that others may share. Where the token
/// table is sharded over ranks, their results are partial sums of the embedding.
class Embedding {
 public:
  /// `position_table` is -1 where positions enter elsewhere, `token_table` where another stage has
  /// the embedding.
  Embedding(ParameterSet* parameters, int64_t token_table, int64_t position_table, DType compute)
      : parameters_(parameters),
        token_table_(token_table),
        position_table_(position_table),
        compute_(compute) {
    if (token_table >= 0) parameters->SetReadDirectly(token_table);
    if (position_table >= 0) parameters->SetReadDirectly(position_table);
  }

  /// Embeds [count] indices: [count, width] in the compute type.
  Result<Value> Forward(Context& context, Tape& tape, const Tensor& tokens,
                        const Tensor& positions = {}) const;

 private:
  const ParameterSet* parameters_;
  int64_t token_table_;
  int64_t position_table_;
  DType compute_;
};

/// What is put at the embedding, whose values have this many columns: dropout at a site of this
/// name, then what `grafter` has. `token_table` as in GraftSite.
Grafts EmbeddingGrafts(ParameterSet* parameters, int64_t width, int64_t token_table,
                       const std::string& dropout_site, double dropout, const Grafter& grafter,
                       const ProductOptions& products);

}  // namespace weft::engine
