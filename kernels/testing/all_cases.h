#pragma once

#include <vector>

#include "kernels/testing/op_case.h"

namespace weft::kernels::testing {

/// The case list of each operation, defined in its <op>_cases.cc.
std::vector<OpCase> ActivationCases();
std::vector<OpCase> AdafactorCases();
std::vector<OpCase> AffineCases();
std::vector<OpCase> AttentionCases();
std::vector<OpCase> BlockSparseCases();
std::vector<OpCase> CayleyCases();
std::vector<OpCase> CrossEntropyCases();
std::vector<OpCase> DropoutCases();
std::vector<OpCase> ElementwiseCases();
std::vector<OpCase> EmbeddingCases();
std::vector<OpCase> GatherRowsCases();
std::vector<OpCase> GroupQuantizeCases();
std::vector<OpCase> HadamardCases();
std::vector<OpCase> LayerNormCases();
std::vector<OpCase> LinearCases();
std::vector<OpCase> LinearFp8Cases();
std::vector<OpCase> LogitPenaltyCases();
std::vector<OpCase> MaskedNormCases();
std::vector<OpCase> MoeCombineCases();
std::vector<OpCase> MoeRouteCases();
std::vector<OpCase> NormStatCases();
std::vector<OpCase> OptimizerCases();
std::vector<OpCase> OrthogonalizeCases();
std::vector<OpCase> PatchesCases();
std::vector<OpCase> Quantize4BitCases();
std::vector<OpCase> QuantizeFp8Cases();
std::vector<OpCase> QuantizeInt8Cases();
std::vector<OpCase> RmsNormCases();
std::vector<OpCase> RopeCases();
std::vector<OpCase> Sparse24Cases();
std::vector<OpCase> Sparse24MaskCases();
std::vector<OpCase> Sparse24MvueCases();
std::vector<OpCase> StepTotalsCases();
std::vector<OpCase> StochasticRoundCases();
std::vector<OpCase> SwapBlocksCases();
std::vector<OpCase> SwiGluCases();

/// All of them, for the benchmark.
inline std::vector<OpCase> AllCases() {
  std::vector<OpCase> all;
  for (const auto& list : {
           ActivationCases(),   AdafactorCases(),       AffineCases(),        AttentionCases(),
           BlockSparseCases(),  CayleyCases(),          CrossEntropyCases(),  DropoutCases(),
           ElementwiseCases(),  EmbeddingCases(),       GatherRowsCases(),    GroupQuantizeCases(),
           HadamardCases(),     LayerNormCases(),       LinearCases(),        LinearFp8Cases(),
           LogitPenaltyCases(), MaskedNormCases(),      MoeCombineCases(),    MoeRouteCases(),
           NormStatCases(),     OptimizerCases(),       OrthogonalizeCases(), PatchesCases(),
           Quantize4BitCases(), QuantizeFp8Cases(),     QuantizeInt8Cases(),  RmsNormCases(),
           RopeCases(),         Sparse24Cases(),        Sparse24MaskCases(),  Sparse24MvueCases(),
           StepTotalsCases(),   StochasticRoundCases(), SwapBlocksCases(),    SwiGluCases(),
       }) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

}  // namespace weft::kernels::testing
