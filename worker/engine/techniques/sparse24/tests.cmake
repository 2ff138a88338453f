# The products of other meshes are those of one rank, which these compare with references.
weft_on_isa(avx2 engine_sparse24_test -*Predicted*:Sparse24.MeshesTrain*:Sparse24.ContextParallel*:LazyAdaptersOnMeshes.*)
