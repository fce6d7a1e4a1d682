"""Embedding operations compiled in Ember's way: decoupled into an access side and an execute side.

`families` states the five families of operations as loop nests in Ember's structured form (`slc`, `streams`);
`passes` optimises that form (emb-opt1 to emb-opt3); `dlc` decouples it into what fetches and what computes;
`access_emitter` and `execute_emitter` generate the code of both sides, and `embedding_kernel` joins them. The names
SLC, DLC, stream, callback, token, loop_tr, mem_str and alu_str are the paper's.
`row_storage` and `table_storage` say how rows of tables are kept in memory (float32, float16, 8 bits).
`family_reference` computes the same in numpy. Most of `compiler` imports this folder; it imports `compiler.graph` and
`compiler.kernels.codegen` alone.
"""
