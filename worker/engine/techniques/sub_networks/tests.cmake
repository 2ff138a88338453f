weft_on_isa(avx2 engine_sub_networks_test -*LocalSteps*:*Formulas*)
