weft_on_isa(avx2 engine_stochastic_depth_test -*Predicted*:*ThePlanner*:*Meshes*)
