weft_on_isa(avx2 engine_layer_sampling_test -*MostLayers*)
