"""The loop of a GPU: products by cuBLAS, all between them in a few kernels, one autograd function.

``modes.fused`` sends a batch through it, ``modes.graph`` replays it as a CUDA graph. Every kernel
has a plain torch form in ``reference``, which runs everywhere and says what it must compute.
"""
