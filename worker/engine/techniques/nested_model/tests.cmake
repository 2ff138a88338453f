weft_on_isa(avx2 engine_nested_model_test -*Predicted*)
