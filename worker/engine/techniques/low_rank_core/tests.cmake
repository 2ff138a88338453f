weft_on_isa(avx2 engine_low_rank_core_test -LowRankCoreMeshes.RanksFollow*)
