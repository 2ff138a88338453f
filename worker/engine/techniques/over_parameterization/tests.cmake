# Optimizers are in engine_optim_test, which each instruction set runs, too.
weft_on_isa(avx2 engine_over_parameterization_test -*EveryOptimizer*)
