weft_on_isa(avx2 engine_pruning_test -*Predicted*:*ThePlanner*)
