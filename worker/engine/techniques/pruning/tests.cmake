# Which ranks have a mask is the same on all instruction sets.
weft_on_isa(avx2 engine_pruning_test -*Predicted*:*ThePlanner*:PruningMeshesTest.RanksWith*)
