# Words and scales are the same bits on all instruction sets, wherever they are and are read from.
weft_on_isa(avx2 engine_weight_quantization_test
  -WeightQuantization.TensorParallelRanksFollow*:*CheckpointsAreRead*:*AFolderIsRead*:*SoIsThatOfAMixture*)
