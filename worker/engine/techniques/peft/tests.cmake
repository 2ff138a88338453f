weft_on_isa(avx2 engine_peft_test -*FollowOne*)
