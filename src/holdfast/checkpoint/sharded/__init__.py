"""Checkpoints over ranks: a folder with one data file per rank and one index.

``step-0000001200/`` holds ``r0.safetensors``, ``r1.safetensors``, … and ``index.json``, the record:
every tensor with dtype and global shape, its chunks with offset, size, file, bytes and checksum.
Ranks write into a folder with a temporary name; one of them writes the index and gives the folder
its name once all data is there. Nothing here is a collective, nothing is ever pickled.

    places      how the local part of a tensor lies in the whole, read from a ``DTensor``
    storage     what the planners of ``torch.distributed.checkpoint`` write to and read from
    index       the index: made from the parts of the ranks, and checked
    agreement   what ranks tell each other about one save, over the store and in the folder
    saving      one rank's share of a save, and the end of it
    loading     a state for one rank, whatever the number of ranks that saved it
    live        the same for live objects, in the form that they have
    export      all of it in one plain file of safetensors
"""
