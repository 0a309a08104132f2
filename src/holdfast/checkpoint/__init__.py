"""Checkpoints: full states of a run on disk, written off the training thread, proven on reading.

A checkpoint is two files: ``step-0000001200.r0.safetensors`` with the tensors and the shape of
the state, and ``step-0000001200.r0.json``, its record: step, metrics, digest. The record is
written last; without it there is no checkpoint.

    training_state  what a run consists of, taken from live objects and put back; module_state,
                optimizer_state, object_state (everything else) and rng know how
    data_position  where a run is in its data; loader_pass is one pass over a loader
    search      which checkpoint to go on from; copying makes host copies of a state
    tree        a nested state as a JSON-able skeleton and a list of tensors, and back
    file        save and load one checkpoint; stream, layout and packing make its bytes
    record      the record beside the tensors, and the proof that neither has changed
    store       a folder of checkpoints: newest, best, which to remove
    writer      saving in the background; finite says what must not be saved
    plain_state a checkpoint as the state dicts that plain PyTorch takes
    compare     what a checkpoint and live objects do not have in common
    values      how far the tensors of two checkpoints are apart
    sharded     the same over ranks: a folder with a data file of each and one index

Nothing is imported here: ``store``, ``record`` and ``compare`` work where there is no torch.
"""
