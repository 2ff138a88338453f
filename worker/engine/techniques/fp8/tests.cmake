# Stages and chunks of sequences have the products of one rank, which these compare with references.
weft_each_isa(engine_fp8_test -*.Stages*:*RanksThatShareSequences*:*WorkersThatRarelyMeet*)
