"""The models that the front serves: where they come from, which versions are live, and how they come and go.

`model_control` decides what is loaded and unloaded, from the configuration and the folders of `model_folders`;
`artifact_loader` is a process that checks artifacts, seals them and keeps their weights in memory; `engine_models`
gives each a number, a region of the tensor pool and slots in one engine process; `live_models` is what requests are
resolved by. `residency` brings models back to memory for the queries that wait, and `memory_room` has idle ones
leave it, by the rule of `memory_budget`; `model_memory` is what each takes.
"""
