weft_on_isa(avx2 engine_structured_pruning_test -*ThePlanner*)
