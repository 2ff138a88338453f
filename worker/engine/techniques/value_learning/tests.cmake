weft_on_isa(avx2 engine_value_learning_test -*Predicted*)
