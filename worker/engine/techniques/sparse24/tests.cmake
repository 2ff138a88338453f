weft_on_isa(avx2 engine_sparse24_test -*Predicted*)
